"""Latency gate: int8 on the target beside the float file and an earlier bundle, interleaved."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.errors import RecipeError
from edgefuse.recipe import LatencyGate, Recipe
from edgefuse.stage import Context, judged, stage
from edgefuse.verdict import Check, evidence

if TYPE_CHECKING:
    from edgefuse.devices.measure.cost import Series
    from edgefuse.target import Calibration, Target


@stage(
    name="gate_latency",
    summary="latency of int8, as a ratio to float",
    file_name="{name}_latency.json",
    inputs=("convert", "quantize", "shrink", "lower"),
    after=("check",),
    sections=("gates.latency",),
    target_fields=(
        *("name", "runtime", "runtime_version", "kernels", "threads", "transport", "architecture"),
        *("emulator", "ssh", "adb", "accelerator", "gpu", "support", "calibration"),
    ),
    tools=("ai-edge-litert", "tflite-runtime"),
    applies=lambda recipe: recipe.gates.latency is not None,
    gate=True,
    measures=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.devices.device import open_device
    from edgefuse.devices.measure.bench_worker import random_feeds
    from edgefuse.devices.measure.cost import checks_of, measure
    from edgefuse.tflite.read import read_model, signature_of

    gate = recipe.gates.latency
    assert gate is not None
    target = context.target
    _require_float_where_asked(gate, target)
    files = {"int8": judged(inputs).path}
    if "lower" in inputs:
        _require_time_alone(gate, target)
    if gate.max_ratio_to_float is not None:
        files["float"] = inputs["convert"].path
    if gate.baseline is not None:
        bundle = context.local(gate.baseline)
        files["baseline"] = _released(bundle, context.work)
        _require_same_model(files, bundle)
    if "lower" in inputs:
        feeds = {"int8": random_feeds(inputs["lower"].signature, recipe.seed)}
    else:
        feeds = {
            n: random_feeds(signature_of(read_model(p)), recipe.seed) for n, p in files.items()
        }
    with tempfile.TemporaryDirectory(dir=context.work) as work:
        device = open_device(target, Path(work), context.log)

        def judge(series: Series) -> list[Check]:
            dot = _int8_dot_product(series, context)
            return checks_of(series, gate, _ratio_limit(gate, dot), recipe.seed)

        series, checks = measure(device, files, feeds, gate, judge=judge, progress=context.progress)
        runtime = device.describe()
    dot_product = _int8_dot_product(series, context)
    _tell_which_limit(gate, dot_product, context)
    operators: dict[str, Any] = {"added": {}, "float": {}}
    if "lower" not in inputs:
        operators = _operators(inputs["convert"].path, files["int8"])
    document = evidence(
        checks,
        target=target.name,
        runtime=runtime,
        provenance=series.provenance,
        figures={"int8_dot_product": dot_product, **series.figures(), "operators": operators},
        hint=_suspects(operators)
        + (
            ""
            if series.unit == "cycles"
            else f"{runtime} may run int8 operators without a fast kernel on this CPU: "
            "compare targets with --target, and look at figures.conditions"
        ),
    )
    if series.exact:
        count = float(series.values("int8")[0, 0])
        said = [f"{count:,.0f} {series.unit} an invoke"]
        if target.calibration is not None:
            estimate = _estimate(count, target.calibration)
            document["figures"]["estimate"] = estimate
            said.append(f"about {estimate['p50_ms']:.3g} ms on {estimate['board']} (estimated)")
        document["summary"] = ", ".join((*said, document["summary"]))
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)


def _require_time_alone(gate: LatencyGate, target: Target) -> None:
    """A GPU program has no float file beside it: only its own time can be judged."""
    if gate.max_p90_ms is None or gate.max_ratio_to_float is not None or gate.baseline is not None:
        raise RecipeError(
            f"target {target.name} runs a GPU program: nothing is there to compare it with",
            where="gates.latency",
            hint=f"give gates.targets.{target.name}.latency: {{max_p90_ms: ...}}, or null",
        )


def _int8_dot_product(series: Series, context: Context) -> bool | None:
    """As the target's file says, else as its device does; None where nobody knows."""
    told = context.target.support.int8_dot_product
    found = series.conditions.get("int8_dot_product") if told is None else told
    return None if found is None else bool(found)


def _ratio_limit(gate: LatencyGate, dot_product: bool | None) -> float | None:
    """The stricter limit wherever it is not known that there is no dot product."""
    if gate.max_ratio_without_int8_dot is not None and dot_product is False:
        return gate.max_ratio_without_int8_dot
    return gate.max_ratio_to_float


def _tell_which_limit(gate: LatencyGate, dot_product: bool | None, context: Context) -> None:
    if gate.max_ratio_without_int8_dot is None:
        return
    if dot_product is None:
        context.warn(
            "whether this CPU has an int8 dot product is unknown (neither the machine nor "
            f"support.int8_dot_product of target {context.target.name} tells): "
            "the ratio to float is judged by max_ratio_to_float"
        )
    elif not dot_product:
        here = context.target.device == "host"
        context.warn(
            "this CPU has no int8 dot product, so int8 gains no time on it: the ratio to float is "
            f"judged by max_ratio_without_int8_dot ({gate.max_ratio_without_int8_dot:g})"
            + (" and proves nothing for a board" if here else "")
        )


def _estimate(instructions: float, calibration: Calibration) -> dict[str, Any]:
    """Time on the board that the target was calibrated with; never judged."""
    return {
        "provenance": "estimated",
        "p50_ms": round(instructions / 1e6 * calibration.ms_per_million_instructions, 4),
        "spread_percent": calibration.spread_percent,
        "board": calibration.board,
        "runtime": calibration.runtime,
    }


def _released(bundle: Path, work: Path) -> Path:
    """The int8 model of an earlier bundle.

    Raises:
        StageError: no whole bundle, or one without an int8 model.
    """
    from edgefuse.archive import unpack
    from edgefuse.errors import StageError

    folder = work / "baseline"
    folder.mkdir()
    names = unpack(bundle, folder)
    found = [name for name in names if name.endswith("_full_integer_quant.tflite")]
    if len(found) != 1:
        raise StageError(
            "no bundle of edgefuse: it holds no int8 model",
            where=f"gates.latency.baseline: {bundle}",
        )
    return folder / found[0]


def _require_same_model(files: Mapping[str, Path], bundle: Path) -> None:
    """Refuse a baseline with other inputs or outputs: a ratio to another model says nothing.

    Types are left alone: an earlier release may have been quantised in another way.
    """
    from edgefuse.tflite.read import read_model, signature_of

    shapes = []
    for name in ("int8", "baseline"):
        found = signature_of(read_model(files[name]))
        sides = (sorted((s.name, s.shape) for s in side) for side in (found.inputs, found.outputs))
        shapes.append(tuple(sides))
    for side, now, then in zip(("inputs", "outputs"), *shapes):
        if now != then:
            raise RecipeError(
                f"{bundle} holds another model: its {side} are {_listed(then)}, "
                f"those of this one {_listed(now)}",
                hint="give an earlier bundle of the same model",
                where="gates.latency.baseline",
            )


def _listed(specs: Iterable[tuple[str, Sequence[int]]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in specs)


def _require_float_where_asked(gate: LatencyGate, target: Target) -> None:

    if gate.max_ratio_to_float is not None and target.compiled_for is not None:
        raise RecipeError(
            f"cannot be judged: {target.name} runs no float model",
            hint=f"give other thresholds under gates.targets.{target.name}.latency",
            where="gates.latency.max_ratio_to_float",
        )


def _operators(float_path: Path, int8_path: Path) -> dict[str, dict[str, int]]:
    """What the int8 file runs, what of it the float file does not, and what stayed float."""
    from edgefuse.tflite.read import read_model

    reference, model = read_model(float_path), read_model(int8_path)
    was, now = reference.operator_counts(), model.operator_counts()
    stayed = Counter(op.custom_code or op.code for op in model.float_operators())
    return {
        "int8": now,
        "added": {code: n - was.get(code, 0) for code, n in now.items() if n > was.get(code, 0)},
        "float": dict(sorted(stayed.items())),
    }


def _suspects(operators: Mapping[str, Mapping[str, int]]) -> str:
    """The operators to look at first; empty when int8 runs the same ones in integers."""
    said = []
    for kind, words in (("added", "which the float file has not"), ("float", "which stayed float")):
        if listed := ", ".join(f"{n} {code}" for code, n in operators[kind].items()):
            said.append(f"{listed} {words}")
    return f"int8 runs {'; and '.join(said)}. " if said else ""
