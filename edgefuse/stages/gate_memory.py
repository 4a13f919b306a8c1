"""Memory gate: the arena that the int8 model needs on the target, and its size.

Judged by the recipe's limits and by those of the target's own file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, judged, stage
from edgefuse.verdict import Check, evidence

if TYPE_CHECKING:
    from edgefuse.devices.measure.arena import Arena


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
    figures: dict[str, Any] = {"int8": _figures(int8)}
    if target.support.float_operators and "lower" not in inputs:
        figures["float"] = _figures(device.arena(inputs["convert"].path)[0])
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
        hint=hint(checks, int8, made_by=inputs),
    )
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)


def _figures(arena: Arena) -> dict[str, Any]:
    return {key: value for key, value in asdict(arena).items() if value is not None}


def hint(checks: Sequence[Check], arena: Arena, made_by: Collection[str]) -> str:
    """What could be done about the checks that do not hold.

    Args:
        arena: the int8 model's.
        made_by: the stages that made what runs. Behind `lower` the goal of the recipe's section
            `memory` is not about its arena; without `shrink` the recipe has no such section.
    """
    failed = [check for check in checks if check.answer != "pass"]
    limits = [int(check.threshold) for check in failed if check.name.startswith("arena")]
    parts: list[str] = []
    if limits:
        parts += _about_arena(min(limits), arena, made_by)
    if len(limits) < len(failed):
        parts.append("the file is mostly weights: fewer or narrower layers make it smaller")
    return "; ".join(parts)


def _about_arena(limit: int, arena: Arena, made_by: Collection[str]) -> Iterator[str]:
    structures = 0
    if arena.head_bytes is not None:
        structures = arena.measured_bytes - arena.head_bytes
        yield (
            f"{arena.head_bytes:,} bytes of the arena are its head (activations and scratch), "
            f"{structures:,} the interpreter's structures, which grow with operators and tensors"
        )
    goal = limit - structures
    if goal <= 0:
        yield "only fewer operators make room for the structures"
    elif "lower" not in made_by:
        yield (
            f"the goal memory.arena_bytes: {goal} in the recipe would do, where it can be reached"
            if "shrink" in made_by
            else f"the recipe's section `memory: {{arena_bytes: {goal}}}` rewrites the file to "
            "that goal, where it can be reached"
        )
        if structures:
            yield "tiles add structures, so that a higher goal may need less in all"
        yield f"`edgefuse memory RECIPE --memory {goal}` tells what each technique would save"
    yield "a smaller input or narrower layers need less"
