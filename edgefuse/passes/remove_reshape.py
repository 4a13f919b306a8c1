"""Take out changes of shape that change nothing, and all but the last of a series.

Problem: flattening, views and added axes come in series; exporters write them even where the shape
stays. They hide producers from other passes, and some runtimes copy the tensor.

Rewrite: Reshape<s>(x) = x where s is x's own shape; likewise Flatten, Expand, Squeeze and
Unsqueeze; Reshape<s>(r(x)) = Reshape<s>(x) for r a Reshape, Flatten, Squeeze or Unsqueeze;
Squeeze<a>(Unsqueeze<a>(x)) = Unsqueeze<a>(Squeeze<a>(x)) = x.

Scope: target shapes that are constants. An extent that only the input knows counts as equal where
the target copies it (0 without allowzero) or leaves it open (-1) and everything else is equal, so a
dynamic batch is exact. In a series, a copied extent of the shape in between must be known. Left
alone: shapes that are computed or that a caller may override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import (
    attribute,
    constant,
    describe,
    read,
    reads_alone,
    replaceable_by,
    why_not_constant,
    why_shared,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
Extents = list[int | None]


def match(node: ir.Node, context: Context) -> Verdict:
    source = node.inputs[0]
    if source is None:
        return None
    if _is_no_op(node):
        return _removed(node, source)
    inner = source.producer()
    if (
        node.op_type == "Expand"
        or inner is None
        or inner.domain != ""
        or inner.op_type not in VIEWS
    ):
        return None
    if _is_inverse(node, inner) and inner.inputs[0] is not None:
        return _removed(node, inner.inputs[0])
    return _series(node, inner, source)


def _removed(node: ir.Node, source: ir.Value) -> Verdict:
    if not replaceable_by(node.outputs[0], source):
        return None
    return Match((node,), {"source": source})


def _series(node: ir.Node, inner: ir.Node, between: ir.Value) -> Verdict:
    if not reads_alone(node, between):
        return _refuse(node, inner, f"the output of {describe(inner)} {why_shared(between, node)}")
    if node.op_type == "Reshape":
        shape = read(node, 1)
        target = constant(shape)
        if target is None:
            if shape is None:
                return None
            what, remedy = why_not_constant(shape)
            return _refuse(node, inner, f"the shape of {describe(node)} {what}", remedy)
        wanted = [int(n) for n in target]
        if not attribute(node, "allowzero", 0):
            known = _extents(between)
            for axis, extent in enumerate(wanted):
                copied = known[axis] if known is not None and axis < len(known) else None
                if extent == 0 and copied in (None, 0):
                    return _refuse(
                        node,
                        inner,
                        f"{describe(node)} copies axis {axis} of {between.name}, whose extent is "
                        "not known",
                    )
                wanted[axis] = copied if extent == 0 and copied else extent
    else:
        found = _extents(node.outputs[0])
        if found is None or sum(extent is None for extent in found) > 1 or 0 in found:
            return _refuse(
                node,
                inner,
                f"the shape that {describe(node)} makes is not known but for one extent",
            )
        wanted = [-1 if extent is None else extent for extent in found]
    return Match(
        (inner, node),
        {"shape": wanted, "allowzero": node.op_type == "Reshape" and 0 in wanted},
    )


def _extents(value: ir.Value | None) -> Extents | None:
    if value is None or value.shape is None:
        return None
    return [extent if isinstance(extent, int) else None for extent in value.shape]


def _is_no_op(node: ir.Node) -> bool:
    source = _extents(node.inputs[0])
    if source is None:
        return False
    if node.op_type == "Flatten":
        return len(source) == 2 and attribute(node, "axis", 1) in (1, -1)
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return _axes(node) == ()
    target = constant(read(node, 1))
    if target is None:
        return False
    wanted = [int(n) for n in target]
    if node.op_type == "Expand":
        tail = source[len(source) - len(wanted) :]
        return len(wanted) <= len(source) and all(
            want == 1 or want == own for want, own in zip(wanted, tail)
        )
    if len(wanted) != len(source):
        return False
    copies = not attribute(node, "allowzero", 0)
    open_axes = [
        axis
        for axis, (want, own) in enumerate(zip(wanted, source))
        if want != own and not (want == 0 and copies)
    ]
    return not open_axes or (len(open_axes) == 1 and wanted[open_axes[0]] == -1 and 0 not in source)


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a Squeeze or Unsqueeze, counted from the front; None when they are not known."""
    given = attribute(node, "axes", None)
    if given is None and (source := read(node, 1)) is not None:
        given = constant(source)
    longer = node.inputs[0] if node.op_type == "Squeeze" else node.outputs[0]
    if given is None or longer is None or longer.shape is None:
        return None
    return tuple(sorted(int(axis) % len(longer.shape) for axis in given))


def _is_inverse(node: ir.Node, inner: ir.Node) -> bool:
    if {node.op_type, inner.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    axes = _axes(node)
    return axes is not None and axes == _axes(inner)


def _refuse(node: ir.Node, inner: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name), str(inner.name)), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    import numpy as np

    node = found.nodes[-1]
    if "source" in found.data:
        builder.bypass(node, found.data["source"])
        return
    inner = found.nodes[0]
    shape = builder.constant(
        np.array(found.data["shape"], np.int64), f"{node.outputs[0].name}_shape", node.graph
    )
    attributes = {"allowzero": 1} if found.data["allowzero"] else {}
    builder.node("Reshape", [inner.inputs[0], shape], attributes, replaces=found.nodes)


PASS = PASSES.add(
    Pass(
        name="remove_reshape",
        summary="Reshape, Flatten, Squeeze, Unsqueeze and Expand that change nothing go; a series "
        "becomes one Reshape.",
        phase="normalise",
        anchors=(*VIEWS, "Expand"),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants"),
        example="""(float[2,12] x) => (float[2,12] y) {
            s = Constant<value_ints = [2, 3, 4]>()
            t = Constant<value_ints = [2, 12]>()
            a = Reshape(x, s)
            b = Reshape(a, t)
            y = Relu(b) }""",
    ),
    __name__,
)
