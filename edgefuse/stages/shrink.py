"""The int8 file in less memory: padding absorbed, operators in another order, the first in tiles.

What is done is judged by the arena that the target's runtime will need, and proven on real samples:
every output of a file of integers keeps every bit. What changes in a float operator is the order of
a sum; its outputs are held to a relative error of 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.artifact import Artifact, Product
from edgefuse.errors import GateFailed, ParityError, RecipeError
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage
from edgefuse.target import Target

if TYPE_CHECKING:
    from pathlib import Path

    from edgefuse.memory.shrink.wish import Wish

_FLOAT_RELATIVE_ERROR = 1e-5


@stage(
    name="shrink",
    summary="the int8 file in less memory, every output bit kept",
    file_name="{name}_full_integer_quant_shrunk.tflite",
    inputs=("quantize",),
    after=("check",),
    sections=("model.inputs", "model.tflite", "preprocess", "memory"),
    samples=("evaluation",),
    target_fields=("runtime", "kernels", "limits", "support"),
    tools=("ai-edge-litert", "flatbuffers", "numpy"),
    applies=lambda recipe: recipe.memory is not None,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse.memory.shrink.out_of_reach import OutOfReach, remedies
    from edgefuse.memory.shrink.shrink import shrink
    from edgefuse.tflite.feeds import with_output_layouts
    from edgefuse.tflite.read import read_model, signature_of
    from edgefuse.tflite.turned import say_turned

    given = inputs["quantize"]
    context.progress(0, 2, "choosing")
    wish = wish_of(recipe, context.target)
    if wish.tiles is not None and wish.last is None and wish.arena_bytes is None:
        raise RecipeError(
            "tiles without the last operator and without a goal",
            where="memory.tiles",
            hint="give memory.tiles.last or memory.arena_bytes, or a target with "
            "limits.arena_bytes",
        )
    try:
        data, done = shrink(given.path.read_bytes(), wish)
    except OutOfReach as error:
        assert recipe.memory is not None
        own = recipe.memory.arena_bytes is not None
        key = "memory.arena_bytes" if own else "limits.arena_bytes of the target"
        hint = remedies(error, key, "memory.max_extra_multiply_adds")
        raise GateFailed(error.message, hint=hint, where=key) from None
    if done.turned_outputs:
        raise RecipeError(
            f"output {done.turned_outputs[0]!r} is a picture: without REVERSE_V2 it would come out "
            "turned",
            where="memory.reverse_input",
            hint="reverse_input: true, or padding: wider_kernels",
        )
    path = context.work / context.file_name
    path.write_bytes(say_turned(data, done.turned_inputs) if done.turned_inputs else data)
    context.progress(1, 2, "comparing")
    proof = _proof(given, path, recipe, context)
    layouts = {spec.name: spec.layout for spec in given.signature.outputs}
    signature = with_output_layouts(signature_of(read_model(path)), layouts)
    said = done.as_json()
    evidence = {**said, "chosen": _chosen(recipe, said), "proof": proof, "summary": _summary(said)}
    return Product("tflite", path, signature, evidence)


def wish_of(recipe: Recipe, target: Target) -> Wish:
    """What the recipe asks for, on its target."""
    from edgefuse.memory.shrink.wish import Wish, kernels_of

    memory = recipe.memory
    assert memory is not None
    operators = target.support.operators
    tiles = memory.tiles
    return Wish(
        padding=memory.padding,
        reverse_input=memory.reverse_input,
        arena_bytes=memory.arena_bytes or target.limits.arena_bytes,
        arena=memory.judged_by or target.judging_arena,
        operators=None if operators is None else frozenset(operators),
        kernels=kernels_of(target) if memory.kernels == "auto" else memory.kernels,
        max_extra_multiply_adds=memory.max_extra_multiply_adds,
        order=memory.order,
        edges=memory.edges,
        tiles=None if tiles is None else (tiles.rows, tiles.columns),
        last=None if tiles is None else tiles.last,
    )


def _chosen(recipe: Recipe, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's section as decided: on any target without a limit of its own it makes the same
    file again."""
    assert recipe.memory is not None
    choice = evidence["choice"]
    tiles = choice["tiles"]
    rows, columns = tiles or (0, 0)
    section = {
        **recipe.memory.model_dump(mode="json"),
        "padding": choice["padding"],
        "edges": choice["edges"],
        "judged_by": evidence["arena"],
        "kernels": evidence["kernels"],
        "arena_bytes": evidence["goal"],
        "tiles": {"rows": rows, "columns": columns, "last": choice["last"]} if tiles else None,
    }
    return {name: value for name, value in section.items() if value is not None}


def _proof(given: Artifact, made: Path, recipe: Recipe, context: Context) -> dict[str, Any]:
    """Both files on real samples: how many, and that nothing differs.

    Raises:
        ParityError: an output differs.
    """
    from edgefuse.data import take
    from edgefuse.parity import require_parity
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.read import read_model
    from edgefuse.tflite.runtime import open_exact, open_model

    assert recipe.memory is not None
    samples = context.samples("evaluation")
    feeds = take(samples, context.downloads, recipe.memory.parity_samples, recipe.model.batch)
    after, missing = open_exact(made, threads=2)  # Rewrites take no operator away but PAD.
    kernels: Literal["builtin", "reference"] = "builtin" if missing else "reference"
    before = open_model(given.path, kernels=kernels, threads=2)
    layouts = source_layouts(recipe)
    results = []
    for model in (before, after):
        results.append([model.run(f) for f in streamed(model.signature, layouts, feeds)])
    if read_model(given.path).float_operators():
        limit, what = _FLOAT_RELATIVE_ERROR, "the file rewritten for memory against the one given"
        parity = require_parity(results[0], results[1], limit=limit, what=what)
        return {"kernels": kernels, "samples": len(feeds), "parity": parity}
    for sample, (wanted, found) in enumerate(zip(*results, strict=True)):
        for name in wanted:
            if (wanted[name] != found[name]).any():
                raise ParityError(
                    f"output {name!r} of sample {sample} is not the same in the file rewritten for "
                    "memory",
                    where=str(given.path),
                    hint="this is a defect of edgefuse: memory: {padding: keep} goes around it; "
                    "please report it with the model",
                )
    return {"kernels": kernels, "samples": len(feeds), "bit_identical": True}


def _summary(done: Mapping[str, Any]) -> str:
    kept = [step["did"] for step in done["steps"] if step["kept"]]
    before, goal = done["arena_bytes_before"], done["goal"]
    if not kept:
        if goal is not None and before <= goal:
            return f"arena {before:,} bytes, within the goal of {goal:,} already"
        return "nothing makes its arena smaller"
    sizes = f"arena {before:,} to {done['arena_bytes']:,} bytes, "
    sizes += f"file {done['file_bytes_before']:,} to {done['file_bytes']:,} bytes"
    extra = f", {done['extra_share']:+.1%} multiply-adds" if done["extra_share"] else ""
    return f"{sizes}{extra}: {'; '.join(kept)}"
