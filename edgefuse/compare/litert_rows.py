"""LiteRT rows: the recipe's own float and int8 .tflite files, XNNPACK where LiteRT applies it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgefuse.compare.prepared import Prepared, Request, without_zeros

if TYPE_CHECKING:
    from edgefuse.artifact import Layout
    from edgefuse.compare.prepared import Array, Feed


def prepare(request: Request, sample: Feed) -> Prepared:
    """Open the file with one thread.

    Raises:
        StageError: LiteRT cannot run it.
    """
    from edgefuse.tflite.feeds import streamed
    from edgefuse.tflite.runtime import open_model, runtime_version

    model = open_model(Path(request.path), threads=1)
    layouts = {name: cast("Layout", layout) for name, layout in request.layouts.items()}

    def turned(feed: Feed) -> dict[str, Array]:
        return next(streamed(model.signature, layouts, [feed]))

    def bind(feed: Feed) -> Callable[[], object]:
        model.feed(turned(feed))
        return model.invoke

    def outputs(feed: Feed) -> dict[str, Array]:
        return model.run_float(turned(feed))

    operators = model.source.operators
    activations = sum(op.activation != "NONE" for op in operators)
    fusions = {**request.fusions, "activation fused": activations}
    distribution, _, version = runtime_version().partition(" ")
    note = f"{request.variant} .tflite of this recipe"
    return Prepared(
        bind, outputs, len(operators), without_zeros(fusions), {distribution: version}, note
    )
