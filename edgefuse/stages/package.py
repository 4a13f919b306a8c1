"""The bundle: everything a device needs and a reviewer asks for, in one deterministic archive.

::

    manifest.json                       contents, needs and origin: see bundle/manifest.py
    sbom.cdx.json                       software bill of materials: see bundle/sbom.py
    models/<name>_float32.tflite
    models/<name>_full_integer_quant.tflite
    models/<name>_<target>.tflite       for an accelerator with a compiler: what it made of the int8
    models/<name>_<target>.cuda.tar     for a GPU: its programs, see cuda/parcel.py
    recipe.json                         the recipe as resolved, defaults included, and its memory
                                        section as the target decided it
    preprocessing.json                  the contract from picture to input; turned_degrees is 180
                                        where the int8 model takes its picture turned
    labels.txt                          class names, one a line, when the recipe has them
    golden/<n>/input_<k>.npy            inputs as the int8 model takes them
    golden/<n>/output_<k>.npy           its outputs by the reference kernels

Golden outputs come from the reference kernels, which are bit-identical on every CPU. Where these
lack an operator (ELU), they come from the built-in kernels of one runtime version: the manifest
says so, and so does a warning. It also says how far the runtime's own choice of kernels was off, so
that a device without reference kernels can be judged. Measurements are no part of it: they lie in
evidence.json beside it, bound to its digest.

A bundle is the same for every target, but for one whose models are compiled: that one's holds the
compiled model too, so it is another bundle, with evidence of its own.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from edgefuse import __version__
from edgefuse.archive import pack
from edgefuse.artifact import Artifact, Product, digest_bytes, digest_file
from edgefuse.bundle.manifest import MANIFEST, RECIPE, SBOM, SCHEMA
from edgefuse.bundle.sbom import sbom
from edgefuse.bundle.schemas import json_bytes
from edgefuse.errors import StageError
from edgefuse.keys import versions, written_recipe
from edgefuse.labels import require_class_names
from edgefuse.recipe import SAMPLE_ROLES, Blob, LocalFile, Recipe
from edgefuse.stage import Context, shipped, stage

if TYPE_CHECKING:
    from edgefuse.tflite.runtime import Model

_TOOLS = (
    "ai-edge-litert", "ai-edge-quantizer", "flatbuffers", "numpy", "onnx", "onnx-ir", "onnx2tf",
    "onnxruntime", "onnxscript", "pillow", "tensorflow", "tf-keras", "torch",
)  # fmt: skip
_SECTIONS = tuple(n for n in Recipe.model_fields if n not in ("schema_version", "name", "seed"))


@stage(
    name="package",
    summary="models, recipe, preprocessing, labels, golden vectors and manifest in one archive",
    file_name="{name}.bundle.tar",
    inputs=("export", "fuse", "convert", "quantize", "shrink", "lower"),
    after=("check", "gate_accuracy", "gate_memory", "gate_latency"),
    sections=_SECTIONS,
    writes_recipe=True,
    samples=SAMPLE_ROLES,
    target_fields=("compiled_for", "accelerator"),
    tools=_TOOLS,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.tflite.needs import runtime_needs
    from edgefuse.tflite.read import read_model

    name = recipe.name
    members: dict[str, bytes] = {
        f"models/{name}_float32.tflite": inputs["convert"].path.read_bytes(),
        f"models/{name}_full_integer_quant.tflite": shipped(inputs).path.read_bytes(),
        RECIPE: json_bytes(_decided(recipe, inputs)),
    }
    if recipe.preprocess is not None:
        members["preprocessing.json"] = json_bytes(
            {
                **recipe.preprocess.model_dump(mode="json"),
                "turned_degrees": 180 if _turned(shipped(inputs)) else 0,
            }
        )
    if recipe.data.labels is not None:
        names = context.local(recipe.data.labels)
        require_class_names(names, shipped(inputs).signature.outputs)
        members["labels.txt"] = names.read_bytes()
    golden, listed = _golden(inputs, recipe, context)
    members |= golden
    models = {
        "float": f"models/{name}_float32.tflite",
        "int8": f"models/{name}_full_integer_quant.tflite",
    }
    compiled: tuple[bytes, dict[str, Any]] | None
    if "lower" in inputs:
        compiled = inputs["lower"].path.read_bytes(), _programs(inputs["lower"], context)
    else:
        compiled = _compiled(shipped(inputs).path, context)
    if compiled is not None:
        ending = "cuda.tar" if "lower" in inputs else "tflite"
        models["compiled"] = f"models/{name}_{context.target.name}.{ending}"
        members[models["compiled"]] = compiled[0]
    sources, data = _sources(recipe, context), _data(context)
    toolchain = {"python": platform.python_version(), **versions(_TOOLS)}
    hashed = {kind: (path, digest_bytes(members[path])) for kind, path in models.items()}
    members[SBOM] = sbom(name, __version__, hashed, sources, data, toolchain)
    manifest = {
        "schema": SCHEMA,
        "edgefuse": __version__,
        "name": name,
        "weights": "random" if recipe.model.random_weights else "given",
        "release": recipe.release,
        "files": {
            path: {"sha256": digest_bytes(data), "bytes": len(data)}
            for path, data in sorted(members.items())
        },
        "models": models,
        "compiled": compiled[1] if compiled is not None else None,
        "signature": shipped(inputs).signature.to_json(),
        "float_signature": inputs["convert"].signature.to_json(),
        "preprocessing": "preprocessing.json" if recipe.preprocess is not None else None,
        "golden": listed,
        "memory": inputs["shrink"].evidence["chosen"] if "shrink" in inputs else None,
        "runtime": runtime_needs(read_model(shipped(inputs).path)),
        "sources": sources,
        "data": data,
        "lineage": {stage_name: artifact.sha256 for stage_name, artifact in inputs.items()},
        "toolchain": toolchain,
        "evidence": "evidence.json beside this bundle, bound to its SHA-256",
    }
    members[MANIFEST] = json_bytes(manifest)
    path = context.work / context.file_name
    pack(members, path)
    evidence = {"summary": f"{len(members)} files, {path.stat().st_size / 1e6:.1f} MB"}
    return Product("bundle", path, evidence=evidence)


def _decided(recipe: Recipe, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """The recipe that makes this bundle on its own target, whichever target was run on."""
    written = written_recipe(recipe)
    if "shrink" in inputs:
        written["memory"] = inputs["shrink"].evidence["chosen"]
    return written


def _programs(lowered: Artifact, context: Context) -> dict[str, Any]:
    """For the manifest: what the GPU programs are."""
    kept = ("bucket", "launches", "arena_bytes", "weights_bytes")
    rows = [{name: row[name] for name in kept} for row in lowered.evidence["programs"]]
    precision = lowered.evidence["precision"]
    by = f"edgefuse {__version__}, {precision}"
    return {"programs": rows, "target": context.target.name, "by": by}


def _compiled(model: Path, context: Context) -> tuple[bytes, dict[str, Any]] | None:
    """What the target's compiler makes of the int8 file, and its facts; None where it has none."""
    from edgefuse.devices.device import Compiling, open_device

    target = context.target
    if target.compiled_for is None:
        return None
    work = context.work / "device"
    work.mkdir()
    device = open_device(target, work, context.log)
    assert isinstance(device, Compiling)
    made = work / "compiled.tflite"
    facts = asdict(device.compile(model, made))
    facts.pop("layers", None)  # one row for each operator: the gates' evidence has them
    return made.read_bytes(), {**facts, "target": target.name, "by": device.describe()}


def _sources(recipe: Recipe, context: Context) -> dict[str, dict[str, str]]:
    """File name and SHA-256 of what the recipe's model comes from."""
    model = recipe.model
    torch = model.torch
    given = {
        "weights": torch.weights if torch else None,
        "onnx": model.onnx,
        "tflite": model.tflite,
    }
    found = {}
    for what, file in given.items():
        if isinstance(file, Blob | LocalFile):
            path = context.local(file)
            name = file.file if isinstance(file, Blob) else PurePath(file.path).name
            found[what] = {"file": name, "sha256": digest_file(path)}
    return found


def _data(context: Context) -> dict[str, dict[str, Any]]:
    """What is known of each sample set of the recipe."""
    sets = {role: context.samples(role) for role in sorted(context.roles)}
    return {
        role: {"digest": one.digest, "samples": one.count, "groups": len(set(one.groups))}
        for role, one in sets.items()
    }


def _golden(
    inputs: Mapping[str, Artifact], recipe: Recipe, context: Context
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Golden vectors as .npy members; and for the manifest their list and whose they are."""
    from edgefuse.data import take
    from edgefuse.tflite.feeds import source_layouts, streamed, upright_or_turned
    from edgefuse.tflite.runtime import open_model, runtime_version, to_input

    feeds = take(
        context.samples("evaluation"),
        context.downloads,
        recipe.package.golden_samples,
        recipe.model.batch,
    )
    model, kernels = _exact(shipped(inputs).path, context)
    usual = open_model(shipped(inputs).path, threads=1)
    off: list[int] = []
    upright: list[int] = []
    members: dict[str, bytes] = {}
    listed = []
    stream = streamed(model.signature, source_layouts(recipe), feeds)
    for index, feed in enumerate(stream):
        exact = {spec.name: to_input(feed[spec.name], spec) for spec in model.signature.inputs}
        outputs = model.run(exact)
        off += _steps(outputs, usual.run(exact))
        if _turned(model):
            wrong = {s.name: upright_or_turned(exact[s.name], s) for s in model.signature.inputs}
            upright += _steps(outputs, model.run(wrong))
        row: dict[str, Any] = {"inputs": {}, "outputs": {}}
        for side, specs, arrays in (
            ("input", model.signature.inputs, exact),
            ("output", model.signature.outputs, outputs),
        ):
            for place, spec in enumerate(specs):
                path = f"golden/{index}/{side}_{place}.npy"
                members[path] = _npy(arrays[spec.name])
                row[f"{side}s"][spec.name] = path
        listed.append(row)
        context.progress(index + 1, len(feeds), "golden vectors")
    if upright and max(upright) <= max(off, default=0):
        raise StageError(
            "no golden picture tells a turned network from one that is fed upright pictures",
            hint="raise package.golden_samples, or set memory.reverse_input: true",
            where="package.golden_samples",
        )
    if off:
        kernels["deviation"] = {"default": {"runtime": runtime_version(), "max_lsb": max(off)}}
    return members, {**kernels, "vectors": listed}


def _turned(model: Artifact | Model) -> bool:
    return any(spec.turned for spec in model.signature.inputs)


def _steps(exact: Mapping[str, Any], found: Mapping[str, Any]) -> list[int]:
    """The largest difference of each integer output, in LSB."""
    return [
        int(abs(exact[name].astype("int64") - found[name].astype("int64")).max())
        for name in exact
        if exact[name].dtype.kind in "iu" and exact[name].size
    ]


def _exact(path: Path, context: Context) -> tuple[Model, dict[str, Any]]:
    """The model with the reference kernels, or with the built-in ones where there are none."""
    from edgefuse.tflite.runtime import open_exact, runtime_version

    model, missing = open_exact(path)
    if not missing:
        return model, {"kernels": "reference"}
    version = runtime_version()
    context.warn(
        f"golden outputs come from the built-in kernels of {version}, since its reference kernels "
        f"have no {missing}: with another version, or on another CPU, the last bits may differ"
    )
    return model, {"kernels": "builtin", "runtime": version, "no_reference": missing}


def _npy(array: Any) -> bytes:
    import numpy as np

    stream = io.BytesIO()
    npy: Any = np.lib.format
    npy.write_array(stream, np.ascontiguousarray(array), version=(1, 0))
    return stream.getvalue()
