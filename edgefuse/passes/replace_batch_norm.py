"""A BatchNormalization that no layer takes becomes Mul and Add.

Problem: a BatchNormalization behind an activation or a pooling has no int8 kernel on its own; as a
normalisation it would stay a float island between two conversions.

Rewrite, with s = gamma / sqrt(var + epsilon):
BN(x) = Add(Mul(x, s), beta - mean s), both constants of shape [C, 1, ...].

Scope: running statistics and parameters are constants, the rank is known. Mul alone where nothing
is shifted, Add alone where nothing is scaled. Left alone: what a layer before or behind it takes,
statistics that are computed at run time, parameters that a caller may override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.batch_norm import read_batch_norm
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, is_float

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder


def match(node: ir.Node, context: Context) -> Verdict:
    import numpy as np

    value = node.inputs[0]
    parameters = read_batch_norm(node)
    if isinstance(parameters, Refusal):
        return parameters
    if value is None or value.shape is None or not is_float(value):
        return _refuse(node, f"the shape of what {describe(node)} reads is unknown")
    dtype = value.dtype.numpy()
    rank = len(value.shape)
    shape = (parameters.channels, *(1,) * (rank - 2)) if rank > 1 else (1,)
    if rank < 2 and parameters.channels != 1:
        return _refuse(node, f"{describe(node)} reads a tensor of rank {rank}")
    with np.errstate(all="ignore"):
        factor = parameters.factor.astype(dtype).reshape(shape)
        shift = parameters.shift.astype(dtype).reshape(shape)
    if not all(np.isfinite(a.astype(np.float64)).all() for a in (factor, shift)):
        return _refuse(node, f"a factor or a shift of {describe(node)} is not finite in {dtype}")
    if ((factor == 0) & (parameters.factor.reshape(shape) != 0)).any():
        return _refuse(node, f"a factor of {describe(node)} is too small for {dtype}")
    return Match((node,), {"factor": factor, "shift": shift})


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node = found.nodes[0]
    value, graph, name = node.inputs[0], node.graph, node.outputs[0].name
    factor, shift = found.data["factor"], found.data["shift"]
    scaled, shifted = bool((factor != 1).any()), bool(shift.any())
    if not shifted:
        operand = builder.constant(factor, f"{name}_factor", graph)
        builder.node("Mul", [value, operand], replaces=(node,))
        return
    if scaled:
        operand = builder.constant(factor, f"{name}_factor", graph)
        value = builder.insert("Mul", [value, operand], before=node)
    operand = builder.constant(shift, f"{name}_shift", graph)
    builder.node("Add", [value, operand], replaces=(node,))


PASS = PASSES.add(
    Pass(
        name="replace_batch_norm",
        summary="A BatchNormalization that no layer takes becomes Mul and Add, which stay int8.",
        phase="fold",
        anchors=("BatchNormalization",),
        match=match,
        rewrite=rewrite,
        after=("fold_conv_batch_norm", "fold_batch_norm_conv", "fold_conv_affine"),
        tolerance=5e-5,
        instead_of=("fold_conv_batch_norm", "fold_batch_norm_conv"),
        example="""(float[1,3,8,8] x,
            float[3] gamma, float[3] beta, float[3] mean, float[3] var) => (float[1,3,8,8] y) {
            a = Relu(x)
            y = BatchNormalization(a, gamma, beta, mean, var) }""",
    ),
    __name__,
)
