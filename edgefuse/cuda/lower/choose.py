"""Which fused groups become one launch at a bucket's shapes, of those that a kernel can compute.

The choice is :mod:`edgefuse.graph.dynamic`'s: launches, bytes over bandwidth, FLOPs over peak, on
the balance of the target, in the element size of the precision. Refused is what raises the peak of
live bytes, and what no kernel computes. Kernels there are for a depthwise convolution before a 1x1
convolution, and for pointwise operators on the way to a product's operand, behind any kernel, and
among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgefuse.cuda.storage import ACTIVATIONS, ITEM_BYTES, Precision
from edgefuse.graph.cost import Balance, load_time
from edgefuse.graph.cost import kernels as kernels_of
from edgefuse.graph.dynamic import Kernels, Plan, plan_kernels
from edgefuse.graph.kernel import group
from edgefuse.graph.shapes import fold_load_time
from edgefuse.memory.liveness.kernels import refuse_rising

if TYPE_CHECKING:
    import onnx_ir as ir


def choose(model: ir.Model, balance: Balance, precision: Precision, *, bucket: str = "") -> Plan:
    """The kernels of one bucket.

    Args:
        model: its groups spelt out, every shape known; constants still computed are folded.

    Raises:
        StageError: a shape or type is not known.
    """
    if load_time(model):
        fold_load_time(model)
    rising, absent = refuse_rising(model), refuse_absent(model)
    return plan_kernels(
        model,
        balance,
        bucket=bucket,
        float_bytes=ITEM_BYTES[ACTIVATIONS[precision]],
        refuse=lambda kernels: absent(kernels) or rising(kernels),
    )


def refuse_absent(model: ir.Model) -> Callable[[Kernels], str]:
    """Why there is no kernel for some of these groups together; empty when there is."""
    kinds = {name: group(name, nodes).kind for name, nodes in kernels_of(model).items()}

    def reason(kernels: Kernels) -> str:
        for names in kernels:
            *inner, root = names
            found = [kinds[name] for name in inner]
            if "rowwise" in found:
                return "no kernel normalises rows on the way to a product"
            if "depthwise" in found and found != ["depthwise"]:
                return "no kernel computes more than a depthwise convolution before a projection"
            if "pointwise" in found and kinds[root] in ("rowwise", "other"):
                return f"no kernel computes pointwise operators before {root!r}"
        return ""

    return reason


def every_depthwise(model: ir.Model) -> Kernels:
    """Every depthwise convolution with the 1x1 convolution that alone reads it, at any cost."""
    groups = [group(name, nodes) for name, nodes in kernels_of(model).items()]
    owner = {node: g for g in groups for node in g.nodes}
    merged: dict[str, str] = {}
    for g in groups:
        if g.kind != "depthwise" or g.result is None or g.result.is_graph_output():
            continue
        readers = {owner.get(use.node) for use in g.result.uses()}
        reader = readers.pop() if len(readers) == 1 else None
        if reader is not None and reader.kind == "projection" and reader.operand is g.result:
            merged[reader.name] = g.name
    taken = set(merged.values())
    return tuple(
        (merged[g.name], g.name) if g.name in merged else (g.name,)
        for g in groups
        if g.name not in taken
    )
