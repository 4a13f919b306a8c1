"""What each format of a quantised file is, as data.

    int8           int8 weights and activations, int32 biases
    int16x8        int8 weights, int16 activations (symmetric), int64 biases
    dynamic_range  int8 weights, float activations: kernels quantise them while running
    float16        float16 weights, each behind a DEQUANTIZE; float32 activations

Operators may leave the format one by one: float, or (in int8) with int16 activations. The
instructions for ai-edge-quantizer follow from that: a list of rules, the last that matches counts.
It matches the names of an operator's outputs, so :func:`numbered` first names every tensor by its
index, and an operator is addressed exactly whatever its tensors were called.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from edgefuse.errors import RecipeError, StageError

if TYPE_CHECKING:
    from edgefuse.tflite.edit import Edit
    from edgefuse.tflite.read import TfliteModel

Format = Literal["int8", "int16x8", "dynamic_range", "float16"]
Boundary = Literal["int8", "uint8", "int16", "float32"]

# Bits of an activation; None where activations stay float.
ACTIVATION_BITS: dict[Format, int | None] = {
    "int8": 8,
    "int16x8": 16,
    "dynamic_range": None,
    "float16": None,
}
# Types that a model's inputs and outputs can have.
BOUNDARIES: dict[Format, tuple[Boundary, ...]] = {
    "int8": ("int8", "uint8", "float32"),
    "int16x8": ("int16", "float32"),
    "dynamic_range": ("float32",),
    "float16": ("float32",),
}


def named_operators(model: TfliteModel, patterns: Sequence[str], key: str) -> frozenset[int]:
    """Operators of a float file, by index, whose first output's name holds one of the patterns.

    Args:
        patterns: regular expressions.
        key: the recipe's key that they come from, for the message.

    Raises:
        RecipeError: a pattern is found nowhere.
    """
    names = {op.index: model.tensors[op.outputs[0]].name for op in model.operators if op.outputs}
    found: set[int] = set()
    for pattern in patterns:
        matching = {index for index, name in names.items() if re.search(pattern, name)}
        if not matching:
            near = difflib.get_close_matches(pattern, names.values(), n=1, cutoff=0.3)
            raise RecipeError(
                f"no operator's output has a name with {pattern!r} in it",
                hint=f"one is {near[0]!r}" if near else "names are those of the float .tflite",
                where=key,
            )
        found |= matching
    return frozenset(found)


def one_scale(code: str, format: Format, per_tensor_weights: bool) -> bool:
    """Whether the weights of an operator have one scale in all.

    So it is for a FULLY_CONNECTED with float activations: tflite-runtime 2.14.0 answers nothing but
    the bias where its weights have a scale a channel.
    """
    return per_tensor_weights or (format, code) == ("dynamic_range", "FULLY_CONNECTED")


def number(index: int) -> str:
    """The name of a tensor in a :func:`numbered` file."""
    return f"t{index}"


def numbered(model: TfliteModel) -> bytes:
    """The same file with every tensor named by its index; names then are unique."""
    from edgefuse.tflite.edit import with_tensor_names

    return with_tensor_names(model.data, [number(t.index) for t in model.tensors])


def restore_names(edit: Edit, source: TfliteModel) -> None:
    """The names of ``source`` again, in a file made from its :func:`numbered` twin.

    Tensors that the quantiser added keep what it appended to the number.
    """
    names = {number(t.index): t.name for t in source.tensors}
    for tensor in edit.graph.tensors:
        name = tensor.name.decode()
        if match := re.match(r"t\d+", name):
            tensor.name = (names[match.group()] + name[match.end() :]).encode()


def rules(
    model: TfliteModel,
    format: Format,
    *,
    per_tensor_weights: bool,
    keep_float: Collection[int],
    int16: Collection[int],
    float_inputs: bool,
    float_outputs: bool,
) -> list[dict[str, Any]]:
    """ai-edge-quantizer's rules for a numbered file."""
    granularity = "TENSORWISE" if per_tensor_weights else "CHANNELWISE"
    if format == "float16":
        found = [_rule(".*", "*", "float_casting", _casting())]
    else:
        found = [_uniform(".*", granularity, ACTIVATION_BITS[format])]
    if format == "dynamic_range":
        found.append({**_uniform(".*", "TENSORWISE", None), "operation": "FULLY_CONNECTED"})
    if int16:
        found.append(_uniform(_outputs(model, int16), granularity, 16))
    if keep_float:
        found.append(_rule(_outputs(model, keep_float), "*", "no_quantize"))
    for operation, wanted in (("INPUT", float_inputs), ("OUTPUT", float_outputs)):
        if wanted:
            found.append(_rule(".*$", operation, "no_quantize"))
    return found


def _outputs(model: TfliteModel, operators: Collection[int]) -> str:
    """Matches the outputs of these operators, which the library joins with semicolons."""
    found = []
    for index in sorted(set(operators)):
        if not 0 <= index < len(model.operators):
            raise StageError(f"there is no operator {index}: the file has {len(model.operators)}")
        found.append(number(model.operators[index].outputs[0]))
    return f"^({'|'.join(found)});"


def _rule(
    regex: str, operation: str, algorithm: str, config: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "regex": regex,
        "operation": operation,
        "algorithm_key": algorithm,
        "op_config": config or {},
    }


def _uniform(regex: str, granularity: str, activation_bits: int | None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "weight_tensor_config": _tensor(8, True, granularity, "INT"),
        "compute_precision": "INTEGER",
        "explicit_dequantize": False,
        "skip_checks": False,
        "min_weight_elements": 0,
    }
    if activation_bits:
        symmetric = activation_bits == 16
        config["activation_tensor_config"] = _tensor(
            activation_bits, symmetric, "TENSORWISE", "INT"
        )
    return _rule(regex, "*", "min_max_uniform_quantize", config)


def _casting() -> dict[str, Any]:
    return {
        "weight_tensor_config": _tensor(16, True, "TENSORWISE", "FLOAT"),
        "compute_precision": "FLOAT",
        "explicit_dequantize": True,
        "skip_checks": False,
        "min_weight_elements": 0,
    }


def _tensor(bits: int, symmetric: bool, granularity: str, dtype: str) -> dict[str, Any]:
    return {"num_bits": bits, "symmetric": symmetric, "granularity": granularity, "dtype": dtype}
