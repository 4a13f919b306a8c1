"""Kernels of several fused groups: what may be computed inside another kernel, and what it costs.

A kernel is the group it ends with, its *root*, and groups whose results only it needs, computed on
the way and never written. Work is cut into tiles. A tile of a matrix product holds ``rows`` by
``columns`` results and runs through the whole shared axis, so what makes its operand is computed
again for each tile of columns::

    recompute  = ceil(columns of the result / columns of a tile)
    tiles      = ceil(rows / tile rows) * recompute
    time       = launch_s + max(bytes / bytes_per_s, matrix / flops_per_s
                 + (own vector work + recompute * operand's vector work) / vector_flops_per_s)
                 / min(1, tiles / parallel_tiles)

Columns may be few, which computes the operand again, or all, which leaves fewer tiles than the
machine has cores: the faster one is taken. Anything else is cut into tiles of as many elements.

Left alone: halos of windows at the edges of tiles, registers and on-chip memory beyond
``widest_columns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Literal

from edgefuse.graph.cost import Balance, Cost, kernel_cost
from edgefuse.graph.flops import (
    POINTWISE,
    elements,
    extents,
    group_count,
    is_dense,
    is_depthwise,
)
from edgefuse.graph.values import attribute, constant, read

if TYPE_CHECKING:
    import onnx_ir as ir

Kind = Literal["projection", "matrix", "depthwise", "pointwise", "rowwise", "other"]
_ROW_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceMax", "ReduceL2")


@dataclass(frozen=True)
class Tile:
    """How matrix work is cut.

    Attributes:
        rows, columns: of one tile.
        widest_columns: most columns that one tile may hold, accumulators in registers.
    """

    rows: int = 64
    columns: int = 64
    widest_columns: int = 512


USUAL_TILE = Tile()


@dataclass(frozen=True, eq=False)
class Group:
    """A fused group, or an operator by itself.

    Attributes:
        kind: ``projection`` for a product whose operand is read row by row: MatMul, Gemm, a 1x1
            convolution; ``matrix`` for other dense products; ``depthwise``, ``pointwise``, or
            ``rowwise`` (a normalisation over the last axis), each with pointwise operators around
            it; ``other`` for the rest.
        operand: what a projection reads row by row.
        result: what it hands out; None when there is more than one such value.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    kind: Kind
    operand: ir.Value | None
    result: ir.Value | None


@dataclass(frozen=True)
class Estimate:
    """What a kernel is predicted to take.

    Attributes:
        columns: of a tile; 0 where the root is no matrix product.
        recompute: how often what is computed on the way to the operand is computed; 1 if nothing.
        tiles: pieces of work that can run at once.
    """

    cost: Cost
    time_s: float
    columns: int
    recompute: int
    tiles: int


def group(name: str, nodes: Sequence[ir.Node]) -> Group:
    """Classify the operators of one fused group, all shapes known."""
    inside = set(nodes)
    handed = [
        value
        for node in nodes
        for value in node.outputs
        if value.is_graph_output() or any(use.node not in inside for use in value.uses())
    ]
    kind, operand = _kind(nodes)
    return Group(name, tuple(nodes), kind, operand, handed[0] if len(handed) == 1 else None)


def _kind(nodes: Sequence[ir.Node]) -> tuple[Kind, ir.Value | None]:
    special = [n for n in nodes if n.op_type not in POINTWISE or n.domain != ""]
    if not special:
        return "pointwise", None
    if all(_along_rows(n) for n in special):
        return "rowwise", None
    if len(special) > 1:
        return "other", None
    node = special[0]
    if is_depthwise(node):
        return "depthwise", None
    if not is_dense(node):
        return "other", None
    return ("projection", read(node, 0)) if _reads_by_rows(node) else ("matrix", None)


def _reads_by_rows(node: ir.Node) -> bool:
    """Whether a tile of rows needs those rows of the first operand and no others."""
    if node.op_type == "Gemm":
        return not attribute(node, "transA", 0)
    if node.op_type == "MatMul":
        return len(extents(node.inputs[0])) > 1
    return (
        node.op_type == "Conv"
        and group_count(node) == 1
        and prod(extents(node.inputs[1])[2:]) == 1
        and not any(attribute(node, "pads", ()))
        and set(attribute(node, "strides", (1,))) == {1}
    )


def _along_rows(node: ir.Node) -> bool:
    """A normalisation or reduction over the last axis alone, which is kept."""
    last = len(extents(node.inputs[0])) - 1 if node.inputs and node.inputs[0] is not None else -1
    if node.op_type in (*_ROW_NORMS, "Softmax", "LogSoftmax"):
        return int(attribute(node, "axis", -1)) in (-1, last)
    if node.op_type not in _REDUCTIONS or not attribute(node, "keepdims", 1):
        return False
    given = constant(read(node, 1))
    axes = attribute(node, "axes", ()) if given is None else given.reshape(-1).tolist()
    return [int(axis) % (last + 1) for axis in axes] == [last]


def estimate(
    root: Group,
    inner: Mapping[Group, bool],
    balance: Balance,
    tile: Tile = USUAL_TILE,
    float_bytes: int | None = None,
) -> Estimate:
    """Predict one kernel.

    Args:
        inner: groups computed on the way; whether each is part of the root's operand, and so
            computed once for each tile of columns.
    """
    again = {node for part, of_operand in inner.items() if of_operand for node in part.nodes}
    silent = {node for part in inner for node in part.nodes}
    nodes = [node for part in inner for node in part.nodes] + list(root.nodes)
    rows, columns = _result(root)
    found: list[Estimate] = []
    for width in _widths(root, columns, tile):
        recompute = ceil(columns / width) if width else 1
        per_tile = tile.rows * tile.columns
        tiles = ceil(rows / tile.rows) * recompute if width else ceil(rows * columns / per_tile)

        def times(node: ir.Node, count: int = recompute) -> int:
            return count if node in again else 1

        cost = kernel_cost(nodes, float_bytes=float_bytes, inner=silent, times=times)
        share = min(1.0, tiles / balance.parallel_tiles)
        repeats = recompute if again else 1
        found.append(Estimate(cost, cost.time_s(balance, share), width, repeats, tiles))
    return min(found, key=lambda e: e.time_s)


def _widths(root: Group, columns: int, tile: Tile) -> list[int]:
    if root.kind not in ("projection", "matrix"):
        return [0]
    widths = [tile.columns]
    if tile.columns < columns <= tile.widest_columns:
        widths.append(columns)
    return widths


def _result(root: Group) -> tuple[int, int]:
    """Rows and columns of the root's work: of a product its result, else its largest tensor."""
    for node in root.nodes:
        if is_dense(node):
            shape = extents(node.outputs[0])
            channels = shape[1] if node.op_type in ("Conv", "ConvTranspose") else shape[-1]
            return prod(shape) // max(channels, 1), channels
    sizes = [elements(v) for n in root.nodes for v in (*n.inputs[:1], *n.outputs) if v is not None]
    return max(sizes, default=1), 1
