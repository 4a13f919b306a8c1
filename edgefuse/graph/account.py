"""The complete account: what became of every operator of the unfused graph, and why.

Each operator is one of

- ``folded``: its numbers are in the weights of a layer, or were computed once;
- ``fused``: it runs inside a group with others;
- ``removed``: nothing is left of it, because nothing was needed;
- ``refused``: a pass could have taken it and said why not;
- ``irreducible``: it is a kernel of its own by what it computes;
- ``unknown``: nothing here knows the operator. A complete account has none.

Scope: main graph and subgraphs, what a runtime has to compute from the input. Left alone: what
depends on constants and static shapes only, which a runtime computes once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.graph.cost import load_time
from edgefuse.graph.ledger import LedgerEntry
from edgefuse.graph.normalise import DOMAIN, prepare
from edgefuse.graph.values import at_run_time, module_path, origin

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Fate = Literal["folded", "fused", "removed", "refused", "irreducible", "unknown"]
FATES: tuple[Fate, ...] = ("folded", "fused", "removed", "refused", "irreducible", "unknown")

_LAYERS = "nothing that reads its result alone could be computed on its accumulator"
_POINTWISE = "no pointwise operator stands beside it with the same shape: it is a kernel alone"
_REDUCTION = "each of its results reads many values: a kernel begins here"
_MOVES = "it moves values and computes nothing"
_VIEW = "a view: it moves no bytes"
_NORM = "no activation reads its result alone"
_CONTROL = "control flow: what runs is decided at run time, and no kernel crosses it"
_SPARSE = "what it reads depends on the values: a kernel of its own"
_RANDOM = "a random operator: it may be neither repeated nor left out"
_OTHER = "pointwise, and no kernel for chains of pointwise operators computes it"
_MAKES = "it makes values from a few sizes"
_LISTS = "it works on lists or optional values: no kernel does"
_TEXT = "it reads text or encoded files: no kernel does"
_INTEGERS = "quantisation carries meaning: it is left as it was given"
_CASTS = "it changes the type, and what reads it needs that"

#: Why operators that no pass took stand alone, by kind.
IRREDUCIBLE: Mapping[str, str] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "ConvInteger"), _LAYERS),
    **dict.fromkeys(
        (
            "Abs", "Add", "And", "BatchNormalization", "BitShift", "Ceil", "Celu", "Clip", "Cos",
            "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual",
            "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean",
            "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu",
            "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
            "Tanh", "ThresholdedRelu", "Where", "Xor",
        ),
        _POINTWISE,
    ),
    **dict.fromkeys(
        (
            "ArgMax", "ArgMin", "AveragePool", "CumSum", "GlobalAveragePool", "GlobalMaxPool",
            "LogSoftmax", "LpNormalization", "MaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
            "ReduceSumSquare", "Softmax", "LRN", "MeanVarianceNormalization", "LpPool",
            "GlobalLpPool", "Hardmax", "AffineGrid", "Col2Im", "DFT", "Det", "STFT",
            "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
        ),
        _REDUCTION,
    ),
    **dict.fromkeys(
        (
            "Concat", "DepthToSpace", "Expand", "Gather", "GatherElements", "Pad", "Resize",
            "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose", "Upsample",
            "Compress", "EyeLike", "ConstantOfShape", "Range", "OneHot", "Trilu", "CenterCropPad",
        ),
        _MOVES,
    ),
    **dict.fromkeys(
        ("Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"), _VIEW
    ),
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "GroupNormalization"), _NORM),
    **dict.fromkeys(("If", "Loop", "Scan"), _CONTROL),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "recurrent: each step waits for the one before"),
    **dict.fromkeys(
        ("GatherND", "NonMaxSuppression", "NonZero", "RoiAlign", "ScatterElements", "ScatterND",
         "TopK", "Unique", "GridSample", "DeformConv", "MaxRoiPool", "MaxUnpool", "Scatter"),
        _SPARSE,
    ),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
         "RandomUniformLike"),
        _RANDOM,
    ),
    **dict.fromkeys(("Cast", "CastLike"), _CASTS),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv",
         "QLinearMatMul", "MatMulInteger"),
        _INTEGERS,
    ),
    **dict.fromkeys(
        ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
         "BitwiseXor", "Cosh", "IsInf", "IsNaN", "Shrink", "Sinh", "Tan"),
        _OTHER,
    ),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), _MAKES),
    **dict.fromkeys(
        ("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
         "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
         "SequenceMap", "SplitToSequence"),
        _LISTS,
    ),
    **dict.fromkeys(
        ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
         "TfIdfVectorizer"),
        _TEXT,
    ),
    "Dropout": "its mask or its mode is used",
}  # fmt: skip


_UNKNOWN: tuple[Fate, str] = ("unknown", "no pass knows this operator")


@dataclass(frozen=True)
class Account:
    """What became of one operator.

    Attributes:
        node: its name in the unfused graph.
        operator: its type.
        module: torch module path; empty when unknown.
        fate: see the module's docstring.
        passes: what fired on it, in order.
        into: the node of the finished graph that computes it; empty when none does.
        reason: why it stands alone or was refused; empty otherwise.
        remedy: what the user can do; may be empty.
    """

    node: str
    operator: str
    module: str
    fate: Fate
    passes: tuple[str, ...] = ()
    into: str = ""
    reason: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passes": list(self.passes)}


def account(
    unfused: ir.Model, fused: ir.Model, ledger: Sequence[LedgerEntry]
) -> tuple[Account, ...]:
    """One row for each operator of the unfused graph, in graph order.

    Args:
        unfused: from :func:`edgefuse.graph.normalise.prepare`, before any pass.
        fused: the finished model.
        ledger: of the run between the two.
    """
    import onnx_ir as ir

    holders: dict[str, _Holder] = {}
    for node in ir.traversal.RecursiveGraphIterator(fused.graph):
        body = fused.functions[node.op_identifier()] if node.domain == DOMAIN else (node,)
        names = origin(node)[0]
        held = _Holder(str(node.name), frozenset(str(n.op_type) for n in body), len(names))
        holders.update(dict.fromkeys(names, held))
    fired: dict[str, list[LedgerEntry]] = {}
    refused: dict[str, list[LedgerEntry]] = {}
    for entry in ledger:
        for name in entry.nodes:
            (fired if entry.status == "fired" else refused).setdefault(name, []).append(entry)
    early = load_time(unfused)
    return tuple(
        _row(node, holders.get(str(node.name)), fired, refused)
        for node in ir.traversal.RecursiveGraphIterator(unfused.graph)
        if node not in early and at_run_time(node)
    )


def account_protos(
    unfused: onnx.ModelProto, fused: onnx.ModelProto, ledger: Sequence[LedgerEntry]
) -> tuple[Account, ...]:
    """:func:`account` of two models as :func:`edgefuse.graph.normalise.load_proto` reads them."""
    import onnx_ir as ir

    return account(prepare(unfused), ir.serde.deserialize_model(fused), ledger)


@dataclass(frozen=True)
class _Holder:
    """The finished node that stands for an operator: its name, what it runs, for how many."""

    name: str
    runs: frozenset[str]
    originals: int


def _row(
    node: ir.Node,
    holder: _Holder | None,
    fired: Mapping[str, list[LedgerEntry]],
    refused: Mapping[str, list[LedgerEntry]],
) -> Account:
    name = str(node.name)
    done = fired.get(name, [])
    current = name if holder is None else holder.name
    against = {e.reason: e.remedy for n in (current, name) for e in refused.get(n, ())}
    fate, reason = _fate(node, holder, done, list(against))
    return Account(
        node=name,
        operator=str(node.op_type),
        module=module_path(node),
        fate=fate,
        passes=tuple(dict.fromkeys(entry.pass_name for entry in done)),
        into="" if holder is None else holder.name,
        reason=reason,
        remedy=next(filter(None, against.values()), "") if fate == "refused" else "",
    )


def _fate(
    node: ir.Node, holder: _Holder | None, done: Sequence[LedgerEntry], against: Sequence[str]
) -> tuple[Fate, str]:
    folded = any(entry.pass_name.startswith("fold_") for entry in done)
    if holder is None:
        return ("folded" if folded else "removed"), (
            "" if done else "nothing that is left reads it"
        )
    if holder.originals > 1:
        return ("folded" if folded and node.op_type not in holder.runs else "fused"), ""
    if against:
        return "refused", "; ".join(against)
    operator = str(node.op_type)
    if operator not in holder.runs and len(holder.runs) == 1:
        (rewritten,) = holder.runs
        reason = IRREDUCIBLE.get(rewritten)
        return ("irreducible", f"rewritten as {rewritten}: {reason}") if reason else _UNKNOWN
    reason = IRREDUCIBLE.get(operator) if node.domain == "" else None
    return ("irreducible", reason) if reason else _UNKNOWN
