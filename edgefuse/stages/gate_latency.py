"""Latency gate: int8 against float on the target, interleaved in fresh processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage
from edgefuse.verdict import Check, evidence


@stage(
    name="gate_latency",
    summary="latency of int8, as a ratio to float",
    file_name="{name}_latency.json",
    inputs=("convert", "quantize"),
    after=("check",),
    sections=("gates.latency",),
    target_fields=("name", "runtime", "kernels", "threads"),
    tools=("ai-edge-litert", "tflite-runtime"),
    applies=lambda recipe: recipe.gates.latency is not None,
    gate=True,
    measures=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    import numpy as np

    from edgefuse.bounds import paired_ratio, time_percentile_bound
    from edgefuse.devices.bench import measure_latency
    from edgefuse.devices.fingerprint import has_int8_dot_product

    gate = recipe.gates.latency
    assert gate is not None
    target = context.target
    latency = measure_latency(
        inputs["convert"].path,
        inputs["quantize"].path,
        log=context.log,
        runtime=target.runtime,
        kernels=target.kernels,
        threads=target.threads,
        processes=gate.processes,
        rounds=gate.rounds,
        seed=recipe.seed,
        progress=context.progress,
    )
    int8, reference = np.array(latency.int8_ms), np.array(latency.float_ms)
    n = int8.size
    checks = []
    limit = gate.max_ratio_to_float
    dot_product = has_int8_dot_product()
    if gate.max_ratio_without_int8_dot is not None and dot_product is None:
        context.warn(
            "whether this CPU has an int8 dot product is unknown (/proc/cpuinfo does not tell): "
            "the ratio to float is judged by max_ratio_to_float"
        )
    if gate.max_ratio_without_int8_dot is not None and dot_product is False:
        limit = gate.max_ratio_without_int8_dot
        context.warn(
            "this CPU has no int8 dot product, so int8 gains no time on it: the ratio to float is "
            f"judged by max_ratio_without_int8_dot ({limit:g}) and proves nothing for a board"
        )
    if limit is not None:
        ratio = paired_ratio(int8, reference, seed=recipe.seed)
        checks.append(Check("ratio to float", ratio.median, ratio.upper, "<=", limit, "", n))
    if gate.max_p90_ms is not None:
        p90 = time_percentile_bound(int8, 90.0, seed=recipe.seed)
        checks.append(Check("p90", p90.point, p90.bound, "<=", gate.max_p90_ms, "ms", n))
    operators = _operators(inputs["convert"].path, inputs["quantize"].path)
    document = evidence(
        checks,
        target=target.name,
        runtime=latency.conditions.runtime,
        provenance="measured",
        figures={"int8_dot_product": dot_product, **latency.summary(), "operators": operators},
        hint=_suspects(operators)
        + f"{latency.conditions.runtime} may run int8 operators without a fast kernel on this CPU: "
        "compare targets with --target, and look at figures.conditions",
    )
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)


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
