"""Take out casts that change nothing, and casts that go there and back.

Problem: mixed-precision exports and CastLike leave casts around every constant and operator; each
copies the whole tensor, and hides what stands before it.

Rewrite, with types S, T, U: Cast<T>(x) = x for x of type T; CastLike(x, y) = x for x and y of one
type; Cast<U>(Cast<T>(x)) = Cast<U>(x) for x of type S where T holds every number of S.

Scope: booleans, integers, float16, bfloat16, float and double; of two casts that do not end where
they began, the first must be read by the second alone. Left alone: a first cast that may round or
overflow (its loss is part of the model), strings and the 8-bit and 4-bit types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefuse.graph.rule import PASSES, Context, Match, Pass, Refusal, Verdict
from edgefuse.graph.values import describe, read, reads_alone, replaceable_by

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgefuse.graph.builder import GraphBuilder

# Bits of the significand and largest exponent; for integers, bits of the magnitude.
FLOATS = {"FLOAT16": (11, 16), "BFLOAT16": (8, 128), "FLOAT": (24, 128), "DOUBLE": (53, 1024)}
SIGNED = {"INT8": 7, "INT16": 15, "INT32": 31, "INT64": 63}
UNSIGNED = {"BOOL": 1, "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}


def match(node: ir.Node, context: Context) -> Verdict:
    value, output = node.inputs[0], node.outputs[0]
    if value is None or value.dtype is None or output.dtype is None:
        return None
    if value.dtype == output.dtype:
        if (
            node.op_type == "CastLike"
            and (like := read(node, 1)) is not None
            and like.dtype is None
        ):
            return None
        return Match((node,), {"source": value}) if replaceable_by(output, value) else None
    inner = value.producer()
    if node.op_type != "Cast" or inner is None or inner.domain != "" or inner.op_type != "Cast":
        return None
    source = inner.inputs[0]
    if source is None or source.dtype is None:
        return None
    first, middle, last = source.dtype.name, value.dtype.name, output.dtype.name
    if not {first, middle, last} <= {*FLOATS, *SIGNED, *UNSIGNED}:
        return None
    if not _holds(middle, first):
        return Refusal(
            f"{describe(inner)} from {first} to {middle} may lose digits",
            (str(node.name), str(inner.name)),
        )
    if middle in FLOATS and not {first, last} & {*FLOATS} and not _holds(last, first):
        return Refusal(
            f"{describe(node)} from {middle} to {last} may overflow, and what it gives then is not "
            "defined",
            (str(node.name), str(inner.name)),
        )
    if source.dtype == output.dtype:
        return Match((node,), {"source": source}) if replaceable_by(output, source) else None
    return Match((inner, node), {"source": source}) if reads_alone(node, value) else None


def _holds(wide: str, narrow: str) -> bool:
    """Whether the type ``wide`` has every number of the type ``narrow``."""
    if wide == narrow:
        return True
    if narrow in FLOATS:
        digits, exponent = FLOATS.get(wide, (0, 0))
        return digits >= FLOATS[narrow][0] and exponent >= FLOATS[narrow][1]
    bits = SIGNED.get(narrow, UNSIGNED.get(narrow, 0))
    if not bits:
        return False
    if wide in FLOATS:
        return bits <= FLOATS[wide][0] and bits < FLOATS[wide][1]
    if wide in SIGNED:
        return bits <= SIGNED[wide]
    return narrow in UNSIGNED and bits <= UNSIGNED.get(wide, 0) and wide != "BOOL"


def rewrite(found: Match, builder: GraphBuilder) -> None:
    node, source = found.nodes[-1], found.data["source"]
    if source.dtype == node.outputs[0].dtype:
        builder.bypass(node, source)
    else:
        builder.node("Cast", [source], {"to": int(node.outputs[0].dtype)}, replaces=found.nodes)


PASS = PASSES.add(
    Pass(
        name="remove_cast",
        summary="A Cast to the same type, and the first of two Casts that loses nothing, go.",
        phase="normalise",
        anchors=("Cast", "CastLike"),
        match=match,
        rewrite=rewrite,
        after=("remove_identity", "fold_constants"),
        example="""(float16[1,4] x) => (float16[1,4] y) {
            a = Cast<to = 1>(x)
            b = Cast<to = 10>(a)
            y = Relu(b) }""",
    ),
    __name__,
)
