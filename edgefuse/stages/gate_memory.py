"""Memory gate: the arena that the int8 model needs with the built-in kernels, and its size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage
from edgefuse.verdict import Check, evidence


@stage(
    name="gate_memory",
    summary="arena and model bytes against their limits",
    file_name="{name}_memory.json",
    inputs=("convert", "quantize"),
    after=("check",),
    sections=("gates.memory",),
    target_fields=("name", "runtime"),
    tools=("ai-edge-litert", "tflite-runtime"),
    applies=lambda recipe: recipe.gates.memory is not None,
    gate=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.devices.arena import measure_arena

    gate = recipe.gates.memory
    assert gate is not None
    target = context.target
    context.progress(0, 2, "int8 arena")
    int8 = measure_arena(inputs["quantize"].path, log=context.log, runtime=target.runtime)
    context.progress(1, 2, "float arena")
    reference = measure_arena(inputs["convert"].path, log=context.log, runtime=target.runtime)
    size = inputs["quantize"].path.stat().st_size
    arena = float(int8.measured_bytes)
    checks = [Check("arena", arena, arena, "<=", gate.max_arena_bytes, "bytes", 1)]
    if gate.max_model_bytes is not None:
        checks.append(
            Check("model", float(size), float(size), "<=", gate.max_model_bytes, "bytes", 1)
        )
    document = evidence(
        checks,
        target=target.name,
        runtime=int8.runtime,
        provenance="measured",
        figures={
            "model_bytes": size,
            "float_model_bytes": inputs["convert"].path.stat().st_size,
            "int8": asdict(int8),
            "float": asdict(reference),
        },
        hint="a smaller input or narrower layers; the largest activation decides the arena",
    )
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)
