"""Memory gate: the arena that the int8 model needs on the target, and its size.

Judged by the recipe's limits and by those of the target's own file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, judged, stage
from edgefuse.verdict import Check, evidence


@stage(
    name="gate_memory",
    summary="arena and model bytes against their limits",
    file_name="{name}_memory.json",
    inputs=("convert", "quantize", "shrink", "lower"),
    after=("check",),
    sections=("gates.memory",),
    target_fields=(
        *("name", "runtime", "runtime_version", "kernels", "threads", "transport", "architecture"),
        *("emulator", "ssh", "adb", "accelerator", "gpu", "limits"),
    ),
    tools=("ai-edge-litert", "tflite-runtime"),
    applies=lambda recipe: recipe.gates.memory is not None,
    gate=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.devices.device import open_device

    gate = recipe.gates.memory
    assert gate is not None
    target = context.target
    work = context.work / "device"
    work.mkdir()
    device = open_device(target, work, context.log)
    context.progress(0, 2, "int8 arena")
    int8, provenance = device.arena(judged(inputs).path)
    context.progress(1, 2, "float arena")
    figures: dict[str, Any] = {"int8": asdict(int8)}
    if target.support.float_operators and "lower" not in inputs:
        figures["float"] = asdict(device.arena(inputs["convert"].path)[0])
    size = judged(inputs).path.stat().st_size
    arena = float(int8.measured_bytes)
    checks = [Check("arena", arena, arena, "<=", gate.max_arena_bytes, "bytes", 1)]
    for name, value, limit in (
        ("model", size, gate.max_model_bytes),
        ("arena on the target", arena, target.limits.arena_bytes),
        ("model on the target", size, target.limits.model_bytes),
    ):
        if limit is not None:
            checks.append(Check(name, float(value), float(value), "<=", limit, "bytes", 1))
    document = evidence(
        checks,
        target=target.name,
        runtime=int8.runtime,
        provenance=provenance,
        figures={
            "model_bytes": size,
            "float_model_bytes": inputs["convert"].path.stat().st_size,
            **figures,
        },
        hint="a smaller input or narrower layers; the largest activation decides the arena",
    )
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)
