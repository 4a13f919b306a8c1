"""Source model to the unfused ONNX graph, proven equal to the source on real samples.

torch: the dynamo exporter without its optimiser, so that BatchNorm is still there to be fused and
every node carries its torch module path; compared with *eager* PyTorch before anything else, since
an exporter can be wrong without an error. onnx: checked, pinned to static shapes, compared with
the file as given. An ONNX file that brings its own scales (QuantizeLinear, DequantizeLinear)
becomes the float graph, with the scales beside it: put together again they must answer as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Layout, Product, Signature, TensorSpec
from edgefuse.errors import SourceError, StageError
from edgefuse.parity import require_parity
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@stage(
    name="export",
    summary="the model as an unfused ONNX graph, equal to its source",
    file_name="{name}.onnx",
    sections=("model", "preprocess", "export"),
    samples=("evaluation",),
    tools=("torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy"),
    applies=lambda recipe: recipe.model.tflite is None,
    cacheable=lambda recipe: recipe.model.torch is None or recipe.model.torch.weights != "callable",
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.data import take
    from edgefuse.graph.clean import clean_export

    feeds = take(
        context.samples("evaluation"),
        context.downloads,
        recipe.export.parity_samples,
        recipe.model.batch,
    )
    context.progress(1, 4, "source")
    raw = context.work / "raw.onnx"
    if recipe.model.torch is not None:
        reference = _from_torch(recipe, context, feeds, raw)
        what = "export against eager PyTorch"
    else:
        reference = _from_onnx(recipe, context, feeds, raw)
        what = "import against the given ONNX file"
    context.progress(3, 4, "comparing")
    path = context.work / context.file_name
    clean_export(raw, path, recipe.name)
    answers, scales = _answers(path, feeds, reference)
    parity = require_parity(reference, answers, limit=recipe.export.max_relative_error, what=what)
    evidence: dict[str, Any] = {
        "parity": parity,
        "weights": "random" if recipe.model.random_weights else "given",
        "summary": f"relative error {parity['max_relative_error']:.1e} on {len(feeds)} samples",
    }
    if scales:
        evidence["quantization"] = scales
        evidence["summary"] += f", {scales['activations']} activations with scales of their own"
    return Product("onnx", path, signature(path, recipe), evidence)


def signature(path: Path, recipe: Recipe) -> Signature:
    """Inputs in the recipe's order and layout, outputs in the file's."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    declared = recipe.preprocess.layout if recipe.preprocess else "NCHW"

    def layout(rank: int) -> Layout:
        return declared if rank == 4 else "other"

    outputs = []
    for output in proto.graph.output:
        shape = tuple(d.dim_value for d in output.type.tensor_type.shape.dim)
        if output.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise StageError(f"output {output.name!r} is not float32", where=path.name)
        outputs.append(TensorSpec(output.name, shape, "float32", layout(len(shape))))
    given = tuple(
        TensorSpec(i.name, tuple(i.shape), i.dtype, layout(len(i.shape)))
        for i in recipe.model.inputs
    )
    return Signature(given, tuple(outputs))


def _from_torch(
    recipe: Recipe, context: Context, feeds: list[dict[str, Any]], raw: Path
) -> list[dict[str, Any]]:
    from edgefuse.sources import torch_callable

    assert recipe.model.torch is not None
    torch = torch_callable.import_torch()
    with _to_log(context.log):
        module = torch_callable.load(recipe.model.torch, recipe.seed, context)
    names = [i.name for i in recipe.model.inputs]
    outputs = list(recipe.model.outputs)
    arguments = [tuple(torch.from_numpy(feed[n].copy()) for n in names) for feed in feeds]
    reference = []
    with torch.no_grad():
        for tensors in arguments:
            reference.append(dict(zip(outputs, _predict(module, tensors, outputs))))
    _require_finite(reference, recipe.model.torch.callable)
    context.progress(2, 4, "exporting")
    with _to_log(context.log):
        try:
            program = torch.onnx.export(
                module,
                arguments[0],
                dynamo=True,
                optimize=False,
                input_names=names,
                output_names=outputs,
                opset_version=recipe.export.opset,
                verbose=False,
            )
            program.save(str(raw))
        except OSError:
            raise
        except Exception as error:
            text = str(error).strip().splitlines()
            raise SourceError(
                f"torch.onnx.export failed: {text[0][:300] if text else type(error).__name__}",
                where=recipe.model.torch.callable,
                hint="the log has the exporter's report; avoid data-dependent control flow",
            ) from error
    return reference


def _require_finite(reference: list[dict[str, Any]], where: str) -> None:
    import numpy as np

    for index, row in enumerate(reference):
        for name, values in row.items():
            if not np.isfinite(values).all():
                raise SourceError(
                    f"the model answers NaN or infinity: output {name!r}, sample {index}",
                    where=where,
                    hint="check the weights, the preprocessing and the samples",
                )


def _predict(module: Any, tensors: tuple[Any, ...], outputs: list[str]) -> list[Any]:
    """Eager outputs as arrays, in the order that the exporter flattens them."""
    from torch.utils import _pytree

    try:
        result = module(*tensors)
    except (Exception, SystemExit) as error:
        text = str(error).strip().splitlines() or [""]
        raise SourceError(
            f"the model does not run on its inputs: {type(error).__name__}: {text[0][:300]}",
            where="model.inputs",
            hint="check names, order and shapes against forward()",
        ) from error
    leaves = _pytree.tree_leaves(result)
    if strange := [type(leaf).__name__ for leaf in leaves if not hasattr(leaf, "detach")]:
        raise SourceError(
            f"the model returns {strange[0]} beside tensors",
            where="model.outputs",
            hint="wrap it in a module whose forward() returns tensors only",
        )
    if len(leaves) != len(outputs):
        raise SourceError(
            f"the model has {len(leaves)} outputs, model.outputs names {len(outputs)}",
            where="model.outputs",
            hint="name every output of forward(), in its order",
        )
    return [leaf.detach().numpy() for leaf in leaves]


def _from_onnx(
    recipe: Recipe, context: Context, feeds: list[dict[str, Any]], raw: Path
) -> list[dict[str, Any]]:
    import onnx

    from edgefuse.graph.qdq import take_out
    from edgefuse.graph.verify import run_onnx
    from edgefuse.sources import onnx_file

    assert recipe.model.onnx is not None
    given = context.local(recipe.model.onnx)
    proto = onnx_file.load(given, recipe.model)
    taken = take_out(proto, str(given))
    onnx.save(proto if taken is None else taken.proto, raw)
    if taken is not None and taken.also_float:
        names = ", ".join(taken.also_float[:3])
        context.warn(
            f"{len(taken.also_float)} values are also read without having been quantised "
            f"({names}{', ...' if len(taken.also_float) > 3 else ''}): in the int8 file every "
            "reader sees them quantised"
        )
    context.progress(2, 4, "reference")
    reference = run_onnx(taken.reference if taken and taken.also_float else given, feeds)
    _require_finite(reference, str(given))
    return reference


def _answers(
    path: Path, feeds: list[dict[str, Any]], reference: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the exported file answers, with the scales that it brings put back; and about these."""
    import onnx

    from edgefuse.graph.qdq import put_back
    from edgefuse.graph.quantization import annotations_of
    from edgefuse.graph.verify import run_onnx
    from edgefuse.parity import difference

    answers = run_onnx(path, feeds)
    if (found := annotations_of(path)) is None:
        return answers, {}
    without = difference(zip(reference, answers), what="float graph against the QDQ model")
    scales = {
        "activations": len(found.activations),
        "weights": len(found.weights),
        "float_against_qdq": without.evidence(None),
    }
    return run_onnx(put_back(onnx.load(path), found), feeds), scales


@contextmanager
def _to_log(log: Path) -> Iterator[None]:
    """What the exporter prints, warns and logs, on descriptors 1 and 2, goes to the log file."""
    import os
    import sys
    import warnings

    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        with log.open("ab") as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), kept):
            os.dup2(saved, descriptor)
            os.close(saved)
