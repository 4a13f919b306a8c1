"""Files of one operator, float, for each operator that has an integer kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tflite.tiny import Builder

Array = np.ndarray[Any, Any]
SHAPE = (1, 4, 6, 8)


@dataclass(frozen=True)
class Case:
    """One operator.

    Args:
        shape: of the output.
        constants: further inputs.
        options: the schema's table and its values.
        inputs: how many activations it reads.
        dtype: of the last output; float32 unless integers come out.
        outputs: how many.
    """

    shape: tuple[int, ...] = SHAPE
    constants: tuple[Array, ...] = ()
    options: tuple[str, Mapping[str, Any]] | None = None
    inputs: int = 1
    dtype: str = "float32"
    outputs: int = 1
    input_shape: tuple[int, ...] = SHAPE


def _ints(*values: Any) -> Array:
    return np.array(values if len(values) > 1 else values[0], np.int32)


_AXIS = (_ints([3]),)
_REDUCED = ("ReducerOptions", {"keepDims": True})
_ALPHA = np.linspace(-0.4, 0.5, 8).astype(np.float32).reshape(1, 1, 8)
CASES: Mapping[str, Case] = {
    "ABS": Case(),
    "ARG_MAX": Case((1, 4, 6), (_ints(3),), ("ArgMaxOptions", {"outputType": 2}), dtype="int32"),
    "ARG_MIN": Case((1, 4, 6), (_ints(3),), ("ArgMinOptions", {"outputType": 2}), dtype="int32"),
    "BATCH_TO_SPACE_ND": Case(
        (1, 4, 6, 8), (_ints([2, 1]), _ints([[0, 0], [0, 0]])), input_shape=(2, 2, 6, 8)
    ),
    "DEPTH_TO_SPACE": Case((1, 8, 12, 2), (), ("DepthToSpaceOptions", {"blockSize": 2})),
    "ELU": Case(),
    "EXP": Case(),
    "EXPAND_DIMS": Case((1, 1, 4, 6, 8), (_ints(0),)),
    "GREATER": Case(inputs=2, dtype="bool"),
    "GREATER_EQUAL": Case(inputs=2, dtype="bool"),
    "L2_NORMALIZATION": Case(),
    "LEAKY_RELU": Case(options=("LeakyReluOptions", {"alpha": 0.2})),
    "LESS": Case(inputs=2, dtype="bool"),
    "LESS_EQUAL": Case(inputs=2, dtype="bool"),
    "LOG_SOFTMAX": Case(),
    "MAXIMUM": Case(inputs=2),
    "MINIMUM": Case(inputs=2),
    "PRELU": Case(constants=(_ALPHA,)),
    "REDUCE_MAX": Case((1, 4, 6, 1), _AXIS, _REDUCED),
    "REDUCE_MIN": Case((1, 4, 6, 1), _AXIS, _REDUCED),
    "RELU6": Case(),
    "RELU_0_TO_1": Case(),
    "RELU_N1_TO_1": Case(),
    "RESIZE_NEAREST_NEIGHBOR": Case(
        (1, 8, 12, 8), (_ints([8, 12]),), ("ResizeNearestNeighborOptions", {})
    ),
    "REVERSE_V2": Case(constants=_AXIS),
    "SPACE_TO_BATCH_ND": Case((2, 2, 6, 8), (_ints([2, 1]), _ints([[0, 0], [0, 0]]))),
    "SPACE_TO_DEPTH": Case((1, 2, 3, 32), (), ("SpaceToDepthOptions", {"blockSize": 2})),
    "SPLIT_V": Case(
        (1, 4, 6, 4), (_ints([4, 4]), _ints(3)), ("SplitVOptions", {"numSplits": 2}), outputs=2
    ),
    "SQUEEZE": Case((4, 6, 8), (), ("SqueezeOptions", {"squeezeDims": [0]})),
    "TILE": Case((1, 8, 6, 8), (_ints([1, 2, 1, 1]),)),
    "TOPK_V2": Case((1, 4, 6, 3), (_ints(3),), outputs=2, dtype="int32"),
}


def file_of(code: str, case: Case | None = None) -> bytes:
    """x0, x1: the operator's activations; y0, y1: its outputs."""
    case = case or CASES[code]
    b = Builder()
    given = [b.tensor(f"x{k}", case.input_shape) for k in range(case.inputs)]
    outputs = [
        b.tensor(f"y{k}", case.shape, case.dtype if k == case.outputs - 1 else "float32")
        for k in range(case.outputs)
    ]
    constants = [b.tensor(f"c{k}", value=value) for k, value in enumerate(case.constants)]
    b.op(code, (*given, *constants), outputs, options=case.options)
    inputs = {f"x{k}": index for k, index in enumerate(given)}
    return b.finish(inputs, {f"y{k}": index for k, index in enumerate(outputs)})


def feeds_of(case: Case, count: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(7)
    rows = []
    for _ in range(count):
        row = {f"x{k}": random.normal(0, 1 + k, case.input_shape) for k in range(case.inputs)}
        rows.append({name: value.astype(np.float32) for name, value in row.items()})
    return rows
