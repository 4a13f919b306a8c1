"""The fused graph as GPU programs, a bucket each: a few launches in one planned arena, proven.

The cost model chooses, by the target's balance, which fused groups become one launch. Every bucket
is compared with the unfused graph at its shapes. At the shape of ``model.inputs`` the program is
then run on real samples twice: by the NumPy reference of each kernel, and by the kernels
themselves in Triton's interpreter; both against the fused ONNX, an int8 program against the int8
TFLite file, whose integers it has; there the kernels must give exactly NumPy's integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage

if TYPE_CHECKING:
    import onnx

    from edgefuse.cuda.deploy import Golden
    from edgefuse.cuda.program import Program
    from edgefuse.cuda.weights import Weights
    from edgefuse.graph.cost import Balance
    from edgefuse.graph.dynamic import Plan
    from edgefuse.recipe.cuda import Cuda
    from edgefuse.recipe.shapes import Bucket
    from edgefuse.tflite.read import TfliteModel

#: Of the largest |output|, by precision.
RELATIVE_ERROR: Mapping[str, float] = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1, "int8": 1e-1}


@stage(
    name="lower",
    summary="the fused graph as GPU programs, each in one planned arena",
    file_name="{name}_cuda.tar",
    inputs=("export", "fuse", "quantize", "trace"),
    sections=("name", "model.inputs", "shapes", "preprocess", "cuda", "fuse.max_relative_error"),
    samples=("evaluation",),
    target_fields=("balance", "threads", "gpu"),
    tools=("numpy", "onnx", "onnx-ir", "onnxruntime", "torch", "triton"),
    applies=lambda recipe: recipe.cuda is not None,
    serves=lambda target: target.runtime == "cuda",
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.cuda.deploy import Golden
    from edgefuse.cuda.parcel import write
    from edgefuse.cuda.run_numpy import Runner
    from edgefuse.data import take

    assert recipe.cuda is not None
    made, rows = [], []
    buckets, source = _buckets(recipe), _source(inputs, recipe.cuda, context)
    for index, bucket in enumerate(buckets):
        context.progress(index, len(buckets) + 1, bucket.label)
        program, weights, row = _lowered(source, recipe, bucket)
        made.append((program, weights))
        rows.append(row)
    context.progress(len(buckets), len(buckets) + 1, "interpreted")
    count = recipe.cuda.interpreted_samples
    feeds = take(context.samples("evaluation"), context.downloads, count, recipe.model.batch)
    runner = Runner(*made[0], poison=0xFF)
    by_numpy = [runner(feed) for feed in feeds]
    proof = _proof(inputs, recipe, context, feeds, by_numpy, *made[0])
    path = context.work / context.file_name
    golden = [Golden(feed, outputs) for feed, outputs in zip(feeds, by_numpy, strict=True)]
    device, code = _for_devices(made, limit_of(recipe.cuda), golden, context)
    write(made, path, device)
    said = "; ".join(
        f"{row['bucket']}: {row['launches']} launches, {row['arena_bytes'] / 1e6:.2f} MB arena"
        for row in rows
    )
    evidence = {
        "precision": recipe.cuda.precision, "programs": rows, "code": code, **proof, "summary": said
    }  # fmt: skip
    return Product("program", path, inputs["fuse"].signature, json.loads(json.dumps(evidence)))


def limit_of(cuda: Cuda) -> float:
    """Largest relative error that a program may have."""
    return cuda.max_relative_error or RELATIVE_ERROR[cuda.precision]


def _for_devices(
    made: list[tuple[Program, Weights]], limit: float, golden: list[Golden], context: Context
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Files for the target's architectures, a folder each program, and figures of their code.

    The first program's hold the golden vectors. The launcher itself checks every folder
    where a C compiler is here to build it.
    """
    from shutil import which

    from edgefuse.cuda.deploy import build_launcher, check, deploy

    gpu = context.target.gpu
    if gpu is None or not gpu.architectures:
        return {}, []
    launcher = context.work / "launcher"
    if which("cc"):
        build_launcher(launcher)
    else:
        context.warn("there is no C compiler (cc): the launcher did not check the device's files")
    members: dict[str, bytes] = {}
    figures = []
    for place, (program, weights) in enumerate(made):
        folder = context.work / "device" / str(place)
        figures.append(
            deploy(
                program,
                weights,
                folder,
                architectures=gpu.architectures,
                golden=golden if place == 0 else (),
                tolerance=limit,
                cache=context.work / "code",
            )
        )
        if launcher.is_file():
            check(launcher, folder)
        members |= {f"{place}/{file.name}": file.read_bytes() for file in sorted(folder.iterdir())}
    return members, figures


def _buckets(recipe: Recipe) -> tuple[Bucket, ...]:
    """Those of ``shapes``, that of ``model.inputs`` first; without ``shapes`` that one alone."""
    from edgefuse.recipe.shapes import resolve

    own = recipe.model.batch
    own_bucket = resolve((own,), recipe.model.inputs)[0]
    others = resolve(recipe.shapes.buckets, recipe.model.inputs) if recipe.shapes else ()
    return (own_bucket, *(b for b in others if b.shapes != own_bucket.shapes))


@dataclass(frozen=True)
class _Source:
    """What every bucket is lowered from, read once; ``int8``: the file and where nodes ended."""

    export: onnx.ModelProto
    fused: onnx.ModelProto
    balance: Balance | None
    int8: tuple[TfliteModel, Mapping[str, tuple[int, ...]]] | None


def _source(inputs: Mapping[str, Artifact], cuda: Cuda, context: Context) -> _Source:
    from edgefuse.cuda.lower.int8 import landings_of
    from edgefuse.devices.measure.balance import balance_of
    from edgefuse.graph.normalise import load_proto
    from edgefuse.tflite.read import read_model

    known = balance_of(context.target, context.log)
    if known is None:
        context.warn("the target has no balance: every fused group is a launch, nothing is chosen")
    int8 = None
    if cuda.precision == "int8":
        trace = json.loads(inputs["trace"].path.read_bytes())
        int8 = read_model(inputs["quantize"].path), landings_of(trace)
    return _Source(
        export=load_proto(inputs["export"].path),
        fused=load_proto(inputs["fuse"].path),
        balance=None if known is None else known.balance,
        int8=int8,
    )


def _lowered(
    source: _Source, recipe: Recipe, bucket: Bucket
) -> tuple[Program, Weights, dict[str, Any]]:
    from edgefuse.cuda.lower.choose import choose
    from edgefuse.cuda.lower.graph import lower
    from edgefuse.cuda.lower.int8 import lower_int8
    from edgefuse.graph.bucket import prove

    assert recipe.cuda is not None
    precision = recipe.cuda.precision
    proven = prove(
        source.export,
        source.fused,
        bucket.as_mapping(),
        label=bucket.label,
        max_relative_error=recipe.fuse.max_relative_error,
        where="model.inputs",
    )
    model, words = proven.fused.model, {"name": recipe.name, "bucket": bucket.label}
    plan: Plan | None = None
    if source.balance is not None:
        plan = choose(model, source.balance, precision, bucket=bucket.label)
    kernels = None if plan is None else plan.kernels
    if source.int8 is not None:
        file, landings = source.int8
        program, weights = lower_int8(model, file, landings, kernels=kernels, **words)
    else:
        program, weights = lower(model, precision, kernels=kernels, **words)
    return program, weights, _row(program, plan, proven.evidence)


def _row(program: Program, plan: Plan | None, proof: dict[str, Any]) -> dict[str, Any]:
    return {
        "bucket": program.bucket,
        "launches": len(program.launches),
        "arena_bytes": program.arena.arena_bytes,
        "bound_bytes": program.arena.bound_bytes,
        "proven": program.arena.proven,
        "bytes_moved": program.bytes_moved,
        "floor_bytes": program.floor_bytes,
        "flops": program.flops,
        "weights_bytes": program.weights_bytes,
        "notes": list(program.notes),
        "decisions": [] if plan is None else plan.to_json()["decisions"],
        "proof": proof,
    }


def _proof(
    inputs: Mapping[str, Artifact],
    recipe: Recipe,
    context: Context,
    feeds: list[dict[str, Any]],
    by_numpy: list[dict[str, Any]],
    program: Program,
    weights: Weights,
) -> dict[str, Any]:
    """What NumPy and Triton's interpreter make of real samples, against the reference."""
    from edgefuse.cuda.run_interp import interpreter
    from edgefuse.graph.verify import run_onnx
    from edgefuse.parity import require_parity
    from edgefuse.tflite.feeds import aligned, run_samples, source_layouts, turned_outputs

    assert recipe.cuda is not None
    limit = limit_of(recipe.cuda)
    with interpreter(context.log) as runs:
        by_kernels = [runs.run(program, weights, feed) for feed in feeds]
    if recipe.cuda.precision == "int8":
        require_parity(by_numpy, by_kernels, limit=0.0, what="kernels against their references")
        found = list(run_samples(inputs["quantize"].path, source_layouts(recipe), feeds))
        wanted, what = aligned(found, turned_outputs(by_numpy, found)), "the int8 TFLite file"
    else:
        wanted, what = run_onnx(inputs["fuse"].path, feeds), "the fused ONNX"
    return {
        "parity": require_parity(
            wanted, by_kernels, limit=limit, what=f"GPU kernels, interpreted, against {what}"
        ),
        "numpy_parity": require_parity(
            wanted, by_numpy, limit=limit, what=f"kernels' NumPy references against {what}"
        ),
    }
