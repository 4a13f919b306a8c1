"""BatchNormalization in inference mode as what it is: one factor and one shift for each channel.

With s = gamma / sqrt(var + epsilon): BN(x) = s x + (beta - mean s), in float64. Parameters that are
computed at run time (a normalisation without running statistics), that a caller may override, or
that differ from pixel to pixel are no constants: the reason is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgefuse.graph.rule import Refusal
from edgefuse.graph.values import Array, attribute, constant, describe, read, why_not_constant

if TYPE_CHECKING:
    import onnx_ir as ir

PARAMETERS = ("scale", "bias", "mean", "variance")


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """factor * x + shift, both [channels] in float64."""

    factor: Array
    shift: Array

    @property
    def channels(self) -> int:
        return len(self.factor)


def read_batch_norm(node: ir.Node) -> BatchNorm | Refusal:
    """The affine map of a BatchNormalization, or why it is none."""
    import numpy as np

    if any(list(o.uses()) or o.is_graph_output() for o in node.outputs[1:]):
        return _refuse(node, f"{describe(node)} has further outputs that are used")
    if not attribute(node, "spatial", 1):
        return _refuse(node, f"{describe(node)} normalises every pixel (spatial is 0)")
    arrays: list[Array] = []
    for index, name in enumerate(PARAMETERS, start=1):
        source = read(node, index)
        if source is None:
            return _refuse(node, f"the {name} of {describe(node)} is missing")
        array = constant(source)
        if array is None:
            what, remedy = why_not_constant(source)
            return _refuse(node, f"the {name} of {describe(node)} {what}", remedy)
        arrays.append(array.astype(np.float64))
    scale, beta, mean, variance = arrays
    if any(a.shape != (scale.size,) for a in arrays):
        return _refuse(node, f"the parameters of {describe(node)} are not of one length")
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        shift = beta - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return _refuse(node, f"{describe(node)} has a variance or a parameter that is not usable")
    return BatchNorm(factor, shift)


def _refuse(node: ir.Node, reason: str, remedy: str = "") -> Refusal:
    return Refusal(reason, (str(node.name),), remedy)
