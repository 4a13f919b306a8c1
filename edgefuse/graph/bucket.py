"""Prove a model at the shapes of a bucket, by running it.

Problem: a graph exported for one shape may hold that shape in a constant, so that at another it
fails, or answers wrongly without failing. Two proofs on seeded random inputs, with onnxruntime:

- the fused model agrees with the unfused export, both at the bucket's shapes;
- where the bucket has another batch, row by row: ``f_B(x)[k] = f_b(x[k])``, the export at the
  bucket's batch against the export at its own. A model that mixes the samples of a batch, or that
  holds its batch in a constant, is refused.

Scope: the first axis of every input is the batch. The first, middle and last rows are compared,
those between are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

from edgefuse.errors import ParityError, RecipeError, StageError, ToolError
from edgefuse.graph.cost import kernel_of
from edgefuse.graph.flops import SHAPE_ONLY, extents
from edgefuse.graph.shapes import BAKED, InputShapes, Reshaped, at_shapes
from edgefuse.graph.values import Array
from edgefuse.graph.verify import Feed, Runner, seeded_feed
from edgefuse.parity import difference

if TYPE_CHECKING:
    import onnx

SEED = 23


@dataclass(frozen=True, eq=False)
class Proven:
    """A bucket whose numbers were checked.

    Attributes:
        unfused, fused: the two models at its shapes.
        evidence: JSON-able: ``fused_to_unfused`` and, for another batch, ``batch_to_rows``, as
            reports show a comparison; ``rebound``: nodes whose constant batch was replaced.
    """

    unfused: Reshaped
    fused: Reshaped
    evidence: dict[str, Any]


def prove(
    export: onnx.ModelProto,
    fused: onnx.ModelProto,
    shapes: InputShapes,
    *,
    label: str,
    max_relative_error: float = 1e-4,
    seed: int = SEED,
    where: str = "",
) -> Proven:
    """Bring both models to a bucket's shapes and prove them there.

    Args:
        export: the unfused model, fully checked, its input shapes static.
        fused: the same, fused.
        shapes: of every input.
        label: the bucket in words.
        max_relative_error: of both proofs, relative to the largest |output|.
        where: the bucket's place in the recipe.

    Raises:
        RecipeError: the model or the memory cannot take these shapes, or the model holds another
            batch as a constant.
        ParityError: the fused model departs from the unfused one.
    """
    reference = at_shapes(export, shapes, where=where)
    candidate = at_shapes(fused, shapes, where=where)
    try:
        feed = seeded_feed(reference.proto, seed=seed)
    except (MemoryError, StageError) as error:
        raise RecipeError(
            f"{label}: there is not enough memory for its inputs",
            hint="give smaller sizes, or leave the bucket out",
            where=where,
        ) from error
    expected = _run(reference, feed, label, where)
    parity = difference(
        [(expected, _run(candidate, feed, label, where))],
        max_relative_error=max_relative_error,
        what=f"{label}: the fused model against the unfused one",
        hint="a fusion holds only at the exported shape: skip passes one by one to find it",
    )
    evidence: dict[str, Any] = {
        "fused_to_unfused": parity.evidence(max_relative_error),
        "rebound": sorted({*reference.rebound, *candidate.rebound}),
    }
    own = _own_batch(export, shapes)
    if own is not None:
        alone = at_shapes(export, own, where=where)
        try:
            evidence["batch_to_rows"] = _rows(
                alone, reference, own, shapes, max_relative_error, seed, label, where
            )
        except ParityError as error:
            raise RecipeError(
                f"{error.message}: it mixes the samples of a batch, or holds the exported batch "
                "in a constant",
                hint=BAKED,
                where=where or error.where,
            ) from error
    return Proven(reference, candidate, evidence)


def _run(model: Reshaped, feed: Feed, label: str, where: str) -> dict[str, Array]:
    try:
        return Runner(model.proto)(feed)
    except ToolError as error:
        raise RecipeError(f"{label}: {error.message}", hint=BAKED, where=where) from error


def _own_batch(export: onnx.ModelProto, shapes: InputShapes) -> InputShapes | None:
    """The bucket's shapes at the exported batch; None where the bucket has that batch."""
    constants = {tensor.name for tensor in export.graph.initializer}
    first = {
        value.name: value.type.tensor_type.shape.dim[0].dim_value
        for value in export.graph.input
        if value.name not in constants and value.type.tensor_type.shape.dim
    }
    if all(shapes[name][0] == size for name, size in first.items() if name in shapes):
        return None
    return {name: (first[name], *shape[1:]) for name, shape in shapes.items() if name in first}


def _rows(
    alone: Reshaped,
    together: Reshaped,
    own: InputShapes,
    shapes: InputShapes,
    max_relative_error: float,
    seed: int,
    label: str,
    where: str,
) -> dict[str, Any]:
    """Compare the model at the bucket's batch with itself at the exported batch, row by row."""
    import numpy as np

    batches = {(own[name][0], shapes[name][0]) for name in own}
    if len(batches) != 1:
        raise RecipeError(
            f"{label}: the first axes of the inputs change by different factors",
            hint="give every input the same batch",
            where=where,
        )
    old, new = batches.pop()
    count = lcm(old, new)
    scale = _scales(alone, together, old, new, label, where)
    random = np.random.default_rng(seed + 1)
    feed = {
        name: random.standard_normal((count, *shape[1:])).astype(np.float32)
        for name, shape in shapes.items()
    }
    whole = [_run(together, _cut(feed, k, new), label, where) for k in range(count // new)]
    answers = {name: np.concatenate([one[name] for one in whole]) for name in scale}
    chunks = sorted({0, count // old // 2, count // old - 1})
    pairs = (
        (
            _run(alone, _cut(feed, k, old), label, where),
            {name: answers[name][k * rows : (k + 1) * rows] for name, rows in scale.items()},
        )
        for k in chunks
    )
    found = difference(
        pairs,
        max_relative_error=max_relative_error,
        what=f"{label}: each row against the model at batch {old}",
    )
    return found.evidence(max_relative_error)


def _scales(
    alone: Reshaped, together: Reshaped, old: int, new: int, label: str, where: str
) -> dict[str, int]:
    """Rows of each output at the exported batch; they must grow with the batch."""
    rows: dict[str, int] = {}
    for one, many in zip(alone.model.graph.outputs, together.model.graph.outputs):
        few, grown = extents(one), extents(many)
        if not few or few[0] * new != grown[0] * old or few[1:] != grown[1:]:
            raise RecipeError(
                f"{label}: output {one.name!r} is {list(grown)}, and {list(few)} at batch {old}: "
                f"it does not grow with the batch{_where_lost(alone, together)}",
                hint=BAKED,
                where=where,
            )
        rows[str(one.name)] = few[0]
    return rows


def _where_lost(alone: Reshaped, together: Reshaped) -> str:
    """The first operator whose operands grow with the batch and whose results do not."""
    sizes = {str(v.name): v.shape for n in alone.model.graph for v in n.outputs}
    sizes |= {str(v.name): v.shape for v in alone.model.graph.inputs}
    for node in together.model.graph:
        grown = [v.name in sizes and v.shape != sizes[str(v.name)] for v in node.inputs if v]
        kept = [v.shape == sizes.get(str(v.name)) for v in node.outputs if v.name]
        if any(grown) and all(kept) and node.op_type not in SHAPE_ONLY:
            return f", lost in {node.op_type} {kernel_of(node)!r}"
    return ""


def _cut(feed: Mapping[str, Array], index: int, size: int) -> dict[str, Array]:
    return {name: value[index * size : (index + 1) * size] for name, value in feed.items()}
