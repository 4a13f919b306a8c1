"""Files in which one layer only is quantised, or one layer only is not.

Problem: which layer costs the accuracy of an int8 file can be measured only where the rest is as
it was. A float file and its int8 twin hold everything that is needed; a :class:`Mixer` writes files
that take each operator from one of them. Every error has one owner: a layer's quantisation is that
of its weights, its bias and the tensor that it writes; what it reads belongs to who wrote it.

    only quantised:  y = D(Q(f(x, w', b')))     all other operators float
    only float:      y = f(x, w, b), read as it is; who reads it computes f(y, w', b'), then Q
    shadowed:        the int8 file, and beside each layer f(D(x), w, b) on the same int8 inputs

where w' = s_w (q - z) and b' = s_x s_w q_b are the constants as the int8 kernel reads them (it
does not look at the bias's own scale), Q and D are QUANTIZE and DEQUANTIZE with the int8 file's
scales. Operators that only move values hand on whether a tensor is quantised.

Scope: files with one subgraph. Left alone: float operators of the int8 file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import StageError
from edgefuse.tflite.draft import Draft, schema
from edgefuse.tflite.inspect import WEIGHTED
from edgefuse.tflite.read import Operator, Tensor, TfliteModel
from edgefuse.tflite.trace import partners

Array = np.ndarray[Any, Any]

# They select, repeat or arrange values; their int8 kernels keep the scale.
MOVES = frozenset(
    [
        *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "SPLIT"),
        *("SPLIT_V", "UNPACK", "GATHER", "GATHER_ND", "REVERSE_V2", "TILE", "BROADCAST_TO"),
        *("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"),
        *("PAD", "MIRROR_PAD", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR"),
    ]
)
_AS_GOOD_AS_MINUS_INF = -1e30
# Places of the data and of the bias among the inputs.
_BIASED = {
    "CONV_2D": (0, 2),
    "DEPTHWISE_CONV_2D": (0, 2),
    "FULLY_CONNECTED": (0, 2),
    "TRANSPOSE_CONV": (2, 3),
}


def is_quantised(tensor: Tensor) -> bool:
    """Whether the tensor holds an activation's real values as integers."""
    return not tensor.is_constant and tensor.real_range is not None


def bias_steps(model: TfliteModel, op: Operator) -> Array | None:
    """What one unit of the bias is worth to the int8 kernel, a value a channel: s_x * s_w.

    None for operators without weights or bias, or that are not quantised.
    """
    if op.code not in _BIASED or not op.inputs:
        return None
    data, place = _BIASED[op.code]
    weight = model.tensors[op.inputs[WEIGHTED[op.code]]]
    given = model.tensors[op.inputs[data]]
    if len(op.inputs) <= place or op.inputs[place] < 0 or len(given.scales) != 1:
        return None
    bias = model.tensors[op.inputs[place]]
    if not (weight.is_constant and weight.scales and bias.is_constant) or bias.is_float:
        return None
    scales = np.asarray(weight.scales, np.float64) * given.scales[0]
    return np.broadcast_to(scales, bias.shape)


def bias_of(model: TfliteModel, op: Operator) -> Tensor | None:
    """The operator's constant bias."""
    place = _BIASED.get(op.code, (0, len(op.inputs)))[1]
    if len(op.inputs) <= place or op.inputs[place] < 0:
        return None
    bias = model.tensors[op.inputs[place]]
    return bias if bias.is_constant else None


def as_read(model: TfliteModel, op: Operator, place: int) -> Array | None:
    """A constant of an int8 operator as its kernel reads it, float32; None when it has no scale."""
    tensor = model.tensors[op.inputs[place]]
    bias = bias_of(model, op)
    if bias is not None and bias.index == tensor.index:
        steps = bias_steps(model, op)
        return None if steps is None else (model.constant(bias) * steps).astype(np.float32)
    return model.real_constant(tensor).astype(np.float32) if tensor.scales else None


@dataclass(frozen=True)
class Pair:
    """One operator in both files."""

    float_op: Operator
    int8_op: Operator


class Mixer:
    """Writes mixed files of a float file and its int8 twin.

    Attributes:
        layers: the pairs that can be blamed, in the int8 file's order.
        moves: pairs that only move values.
        left_float: operators of the int8 file whose result is not quantised.
        strangers: operators of the int8 file without a twin.
    """

    def __init__(self, float_model: TfliteModel, int8_model: TfliteModel) -> None:
        self.float_model, self.int8_model = float_model, int8_model
        found = partners(float_model, int8_model)
        self._twin = {new: old for old, new in found.items()}
        self.layers: list[Pair] = []
        self.moves: list[Pair] = []
        self.left_float: list[Operator] = []
        self.strangers: list[Operator] = []
        for op in int8_model.operators:
            if op.code in ("QUANTIZE", "DEQUANTIZE"):
                continue
            if op.index not in self._twin:
                self.strangers.append(op)
                continue
            pair = Pair(float_model.operators[self._twin[op.index]], op)
            self._check(pair)
            if not any(is_quantised(int8_model.tensors[i]) for i in op.outputs):
                self.left_float.append(op)
            elif self._moves(op):
                self.moves.append(pair)
            else:
                self.layers.append(pair)
        if (
            not self.layers
            and not self.strangers
            and len(self.left_float) == len(int8_model.operators)
        ):
            raise StageError(
                "no operator of the file is quantised",
                hint="give the int8 file, not the float one",
                where=int8_model.where,
            )
        pairs = len(self.layers) + len(self.moves) + len(self.left_float)
        if not self.layers or len(self.strangers) > pairs:
            raise StageError(
                f"{len(self.strangers)} operators of the int8 file have no twin in the float file, "
                f"and {len(self.layers)} of the other {pairs} are quantised layers",
                hint="both must come from the same model: operators are matched in order, else by "
                "the names of their results",
                where=int8_model.where,
            )
        self._schema = schema()
        self._float = self._unpacked(float_model)
        self._int8 = self._unpacked(int8_model)

    def _moves(self, op: Operator) -> bool:
        """Whether the int8 operator only moves values: one of MOVES, or a padding that no maximum
        behind it prefers, whose constant is no value of the tensor."""
        if op.code != "PADV2":
            return op.code in MOVES
        twin = self.float_model.operators[self._twin[op.index]]
        constant = self.float_model.tensors[twin.inputs[2]]
        if not constant.is_constant:
            return False
        return float(self.float_model.constant(constant).max()) <= _AS_GOOD_AS_MINUS_INF

    def _check(self, pair: Pair) -> None:
        old = self.float_model.tensors[pair.float_op.outputs[0]]
        new = self.int8_model.tensors[pair.int8_op.outputs[0]]
        operands = len(pair.float_op.inputs), len(pair.int8_op.inputs)
        if not _alike(old.shape, new.shape) or operands[0] != operands[1]:
            raise StageError(
                f"{pair.int8_op.label} makes {new.shape} of {operands[1]} operands, its twin in "
                f"the float file {old.shape} of {operands[0]}",
                hint="the two files do not come from the same model",
                where=self.int8_model.where,
            )

    def _unpacked(self, model: TfliteModel) -> Any:
        return self._schema.ModelT.InitFromObj(self._schema.Model.GetRootAs(model.data))

    def inputs(self) -> list[tuple[str, int, int]]:
        """Inputs that the int8 file quantises: the float file's name, float tensor, int8 tensor."""
        by_name = dict(self.int8_model.signature_inputs)
        by_place = [index for _, index in self.int8_model.signature_inputs]
        rows = []
        for place, (name, index) in enumerate(self.float_model.signature_inputs):
            held = self.int8_model.tensors[by_name.get(name, by_place[place])]
            if held.is_float:
                readers = [o for o in self.int8_model.operators if held.index in o.inputs]
                if len(readers) == 1 and readers[0].code == "QUANTIZE":
                    held = self.int8_model.tensors[readers[0].outputs[0]]
            if is_quantised(held):
                rows.append((name, index, held.index))
        return rows

    def only_quantised(self, pair: Pair) -> bytes:
        """The float file with one layer's constants and result rounded as in the int8 file."""
        draft = Draft(self._float, self._schema)
        op = draft.copied(self._float, pair.float_op.index)
        for place, index in enumerate(pair.int8_op.inputs):
            if index >= 0 and self.int8_model.tensors[index].is_constant:
                value = as_read(self.int8_model, pair.int8_op, place)
                if value is not None:
                    op.inputs[place] = draft.constant(value)
        following = []
        for place, index in enumerate(pair.int8_op.outputs):
            if is_quantised(self.int8_model.tensors[index]):
                result = op.outputs[place]
                op.outputs[place] = draft.activation(result)
                following += self._round(draft, op.outputs[place], index, result)
        draft.operators[pair.float_op.index : pair.float_op.index + 1] = [op, *following]
        return draft.finish()

    def input_only_quantised(self, float_tensor: int, int8_tensor: int) -> bytes:
        """The float file with one input rounded as the int8 file does."""
        draft = Draft(self._float, self._schema)
        rounded = draft.activation(float_tensor)
        operators = []
        for op in draft.operators:
            copied = copy.copy(op)
            copied.inputs = [rounded if i == float_tensor else int(i) for i in op.inputs]
            operators.append(copied)
        draft.operators[:] = [*self._round(draft, float_tensor, int8_tensor, rounded), *operators]
        return draft.finish()

    def _round(self, draft: Draft, source: int, like: int, result: int) -> list[Any]:
        """QUANTIZE to the scale of an int8 tensor, and DEQUANTIZE."""
        held = draft.imported(self._int8, like)
        return [draft.conversion(source, held), draft.conversion(held, result, back=True)]

    def only_float(self, pair: Pair) -> bytes:
        """The int8 file with one layer's quantisation taken out."""
        return self._freed(Draft(self._int8, self._schema), {}, pair.int8_op.index)

    def input_only_float(self, int8_tensor: int) -> bytes:
        """The int8 file with one input read in float."""
        draft = Draft(self._int8, self._schema)
        makers = [op for op in self.int8_model.operators if int8_tensor in op.outputs]
        if makers:
            return self._freed(draft, {int8_tensor: makers[0].inputs[0]}, None)
        free = draft.activation(int8_tensor)
        draft.exchange({int8_tensor: free}, ("inputs",))
        return self._freed(draft, {int8_tensor: free}, None)

    def _freed(self, draft: Draft, free: dict[int, int], layer: int | None) -> bytes:
        """Replace what makes or reads the tensors in ``free`` (int8 tensor: float tensor)."""
        operators: list[Any] = []
        known: dict[int, int] = {}
        for op, held in zip(self.int8_model.operators, list(draft.operators)):
            reads = not free.keys().isdisjoint(op.inputs)
            if op.index != layer and not reads:
                operators.append(held)
                continue
            results = [self.int8_model.tensors[i] for i in op.outputs]
            if op.code == "DEQUANTIZE":
                free[op.outputs[0]] = free[op.inputs[0]]
                continue
            if op.code == "QUANTIZE" or not any(is_quantised(t) for t in results):
                copied = copy.copy(held)
                copied.inputs = [free.get(i, i) for i in op.inputs]
                operators.append(copied)
                continue
            exact = op.index == layer
            before, copied = self._in_float(draft, op, free, known, exact=exact)
            after = []
            for place, tensor in enumerate(results):
                copied.outputs[place] = draft.activation(tensor.index)
                if exact or self._moves(op):
                    free[tensor.index] = copied.outputs[place]
                else:
                    after.append(draft.conversion(copied.outputs[place], tensor.index))
            operators += [*before, copied, *after]
        draft.operators[:] = operators
        draft.exchange(free, ("outputs",))
        return draft.finish()

    def _in_float(
        self,
        draft: Draft,
        op: Operator,
        free: Mapping[int, int],
        known: dict[int, int],
        *,
        exact: bool,
    ) -> tuple[list[Any], Any]:
        """An int8 operator's float twin on its operands, and the DEQUANTIZE before it.

        Args:
            known: int8 tensors that are dequantised already, and into which; added to.
            exact: the float file's constants, not the int8 file's.
        """
        if op.index not in self._twin:
            raise StageError(f"{op.label} reads it, and has no twin in the float file")
        twin = self.float_model.operators[self._twin[op.index]]
        copied = draft.copied(self._float, twin.index)
        before = []
        for place, index in enumerate(op.inputs):
            if index < 0:
                continue
            tensor = self.int8_model.tensors[index]
            if index in free:
                copied.inputs[place] = free[index]
            elif tensor.is_constant:
                value = None if exact else as_read(self.int8_model, op, place)
                copied.inputs[place] = (
                    self._constant(draft, twin, place) if value is None else draft.constant(value)
                )
            elif is_quantised(tensor):
                if index not in known:
                    known[index] = draft.activation(index)
                    before.append(draft.conversion(index, known[index], back=True))
                copied.inputs[place] = known[index]
            else:
                copied.inputs[place] = index
        return before, copied

    def _constant(self, draft: Draft, twin: Operator, place: int) -> int:
        source = self.float_model.tensors[twin.inputs[place]]
        makers = [op for op in self.float_model.operators if source.index in op.outputs]
        if makers and makers[0].code == "DEQUANTIZE":  # weights stored as float16
            half = self.float_model.tensors[makers[0].inputs[0]]
            if half.is_constant:
                return draft.constant(self.float_model.real_constant(half).astype(np.float32))
        if not source.is_constant:
            raise StageError(f"{twin.label} of the float file computes what is constant in int8")
        return draft.imported(self._float, source.index)

    def shadowed(self) -> tuple[bytes, dict[int, int]]:
        """The int8 file with every layer's float twin beside it, on the same int8 inputs.

        Returns:
            The file, whose other tensors keep their indices, and the float tensor that each
            layer's first result shall be compared with, by int8 operator.
        """
        draft = Draft(self._int8, self._schema)
        known: dict[int, int] = {}
        found = {}
        for pair in self.layers:
            before, copied = self._in_float(draft, pair.int8_op, {}, known, exact=True)
            for place, index in enumerate(pair.int8_op.outputs):
                copied.outputs[place] = draft.activation(index)
            found[pair.int8_op.index] = copied.outputs[0]
            draft.operators.extend([*before, copied])
        return draft.finish(), found


def _alike(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two shapes are the same but for axes of one: a MEAN may keep its axes or not."""
    return [n for n in left if n != 1] == [n for n in right if n != 1]
