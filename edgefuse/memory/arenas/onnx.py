"""The arena of an ONNX graph, unfused or fused, as edgefuse's own planner lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgefuse.graph.normalise import load_proto, prepare
from edgefuse.graph.shapes import fold_load_time
from edgefuse.memory.arena import Arena
from edgefuse.memory.liveness.onnx import ONNX, Step, live_buffers, steps_of
from edgefuse.memory.planner.plan import EFFORT, TIME_LIMIT_S, plan

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from edgefuse.memory.liveness.sharing import Sharing

OWNER = "edgefuse"


def load_graph(path: Path) -> ir.Model:
    """A normalised graph; what a runtime computes when it loads the model is folded.

    Exporters spell shapes as programs over constants; folded, the shapes behind them are known.

    Raises:
        SourceError: the file is no valid ONNX model.
    """
    model = prepare(load_proto(path))
    fold_load_time(model)
    return model


def onnx_arena(
    model: ir.Model,
    sharing: Sharing = ONNX,
    *,
    steps: Sequence[Step] | None = None,
    capacity: int | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    effort: int = EFFORT,
) -> Arena:
    """The smallest arena that is found for a graph.

    Args:
        model: from :func:`load_graph`, fused or not.
        sharing: how buffers are rounded up and shared.
        steps: another way to run it; the graph's own order by default.
        capacity: bytes; planning ends at the first plan that fits.
        time_limit_s, effort: of :func:`~edgefuse.memory.planner.plan.plan`.

    Raises:
        StageError: what :func:`~edgefuse.memory.liveness.onnx.live_buffers` and the planner refuse.
    """
    if steps is None:
        steps = steps_of(model)
    buffers = live_buffers(model, sharing, steps)
    made = plan(
        buffers,
        alignment=sharing.alignment,
        capacity=capacity,
        time_limit_s=time_limit_s,
        effort=effort,
    )
    return Arena(
        owner=OWNER,
        buffers=buffers,
        offsets=tuple(made.offsets[buffer.name] for buffer in buffers),
        steps=tuple(step.label for step in steps),
        bound_bytes=made.bound_bytes,
        proven=made.proven,
    )
