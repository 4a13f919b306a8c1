"""What the Coral Edge TPU's documentation asks of a model, checked on the file.

Problem: the vendor's compiler is not always there, and where it is it leaves an operator that
breaks a rule, and every operator after it, to the CPU without an error. Each rule here is one
sentence of the vendor's documentation (model requirements and table of supported operations); its
docstring is the message that a user reads.

Scope: what is documented. The compiler may refuse more ("some unspecified limitation", tensors too
large for its memory): passing the rules is necessary, never sufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgefuse.tflite.read import Operator, Tensor, TfliteModel

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SUPPORTED = frozenset(
    {
        *("ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "EXPAND_DIMS"),
        *("FULLY_CONNECTED", "L2_NORMALIZATION", "LOGISTIC", "MAXIMUM", "MAX_POOL_2D", "MEAN"),
        *("MINIMUM", "MUL", "PACK", "PAD", "PRELU", "QUANTIZE", "REDUCE_MAX", "REDUCE_MIN"),
        *("RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "RESIZE_BILINEAR", "RSQRT", "SLICE"),
        *("RESIZE_NEAREST_NEIGHBOR", "SOFTMAX", "SPACE_TO_DEPTH", "SPLIT", "SQUARED_DIFFERENCE"),
        *("SQUEEZE", "STRIDED_SLICE", "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV"),
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
    }
)
MAX_SOFTMAX = 16_000


@dataclass(frozen=True)
class Broken:
    """A rule that the model breaks; ``place`` is an operator's label or a tensor's name."""

    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Site:
    """An operator with what the rules ask about it."""

    model: TfliteModel
    op: Operator
    options: Any

    def input(self, place: int) -> Tensor:
        return self.model.tensors[self.op.inputs[place]]

    @property
    def output(self) -> Tensor:
        return self.model.tensors[self.op.outputs[0]]

    @property
    def constants(self) -> tuple[Tensor, ...]:
        tensors = (self.model.tensors[i] for i in self.op.inputs if i >= 0)
        return tuple(t for t in tensors if t.is_constant)

    def value(self, place: int) -> list[int] | None:
        """A small integer constant; None when it is computed at run time."""
        tensor = self.input(place)
        if not tensor.is_constant:
            return None
        return [int(x) for x in self.model.constant(tensor).reshape(-1)]

    def axes(self, place: int) -> list[int] | None:
        """Axes of the first input that a constant names, counted from the front."""
        value, rank = self.value(place), len(self.input(0).shape)
        return None if value is None else [x % rank for x in value]


@dataclass(frozen=True)
class Rule:
    """One documented sentence.

    Attributes:
        operators: those it is about; empty: all.
        message: the docstring, one line.
        holds: whether an operator keeps it.
    """

    name: str
    operators: frozenset[str]
    message: str
    holds: Callable[[Site], bool]


RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Callable[[Site], bool]], Callable[[Site], bool]]:
    def register(holds: Callable[[Site], bool]) -> Callable[[Site], bool]:
        message = " ".join((holds.__doc__ or "").split())
        RULES[holds.__name__] = Rule(holds.__name__, frozenset(operators), message, holds)
        return holds

    return register


def broken_rules(model: TfliteModel) -> list[Broken]:
    """Every rule that the file breaks, in operator order; empty when it keeps all."""
    return list(_broken(model))


def _broken(model: TfliteModel) -> Iterator[Broken]:
    from edgefuse.tflite.edit import Edit

    held = Edit(model.data).graph.operators
    for op, table in zip(model.operators, held):
        site = Site(model, op, table.builtinOptions)
        for one in RULES.values():
            if (not one.operators or op.code in one.operators) and not one.holds(site):
                yield Broken(one.name, op.label, one.message)


def _activations(site: Site) -> tuple[Tensor, ...]:
    return site.model.activations_of(site.op)


@rule()
def operator_is_supported(site: Site) -> bool:
    """The Edge TPU does not have this operator."""
    return site.op.code in SUPPORTED


@rule()
def tensors_have_8_bits(site: Site) -> bool:
    """Activations must be int8 or uint8, with a scale."""
    return all(t.dtype in ("int8", "uint8") and t.scales for t in _activations(site))


@rule()
def sizes_are_constant(site: Site) -> bool:
    """Sizes of tensors must be constant at compile time."""
    return not any(t.is_dynamic for t in _activations(site))


@rule("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "PRELU")
def parameters_are_constant(site: Site) -> bool:
    """Weights and biases must be constant at compile time."""
    data = 2 if site.op.code == "TRANSPOSE_CONV" else 0
    indices = [i for k, i in enumerate(site.op.inputs) if k != data and i >= 0]
    return all(site.model.tensors[i].is_constant for i in indices)


@rule()
def three_innermost_axes(site: Site) -> bool:
    """Only the three innermost axes may be longer than 1: the batch must be 1."""
    return all(size == 1 for t in _activations(site) for size in t.shape[:-3])


@rule("AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION")
def no_fused_activation(site: Site) -> bool:
    """This operator must have no fused activation."""
    return site.op.activation == "NONE"


@rule("CONCATENATION")
def constant_part_is_zero_padding(site: Site) -> bool:
    """A constant may be concatenated with one other input only, and must be all zeros."""
    if not site.constants:
        return True
    zeros = all((site.model.real_constant(t) == 0).all() for t in site.constants)
    return len(site.op.inputs) == 2 and zeros


@rule("CONV_2D", "DEPTHWISE_CONV_2D")
def dilation_is_square(site: Site) -> bool:
    """The dilation must be the same in x and y."""
    return bool(site.options.dilationHFactor == site.options.dilationWFactor)


@rule("FULLY_CONNECTED")
def weights_have_default_format(site: Site) -> bool:
    """Only the default format of weights is supported."""
    return bool(site.options.weightsFormat == 0)


@rule("FULLY_CONNECTED")
def output_is_one_dimensional(site: Site) -> bool:
    """The output must have one axis longer than 1 at most, the innermost."""
    return all(size == 1 for size in site.output.shape[:-1])


@rule("MEAN", "REDUCE_MAX", "REDUCE_MIN", "SUM")
def batch_is_not_reduced(site: Site) -> bool:
    """The batch axis must not be reduced."""
    axes = site.axes(1)
    return axes is not None and not (len(site.input(0).shape) == 4 and 0 in axes)


@rule("MEAN")
def mean_over_channels_in_fours(site: Site) -> bool:
    """A mean over channels needs a multiple of 4 of them."""
    axes, shape = site.axes(1), site.input(0).shape
    return axes is not None and (len(shape) - 1 not in axes or shape[-1] % 4 == 0)


@rule("PACK")
def batch_is_not_packed(site: Site) -> bool:
    """Packing along the batch axis is not supported."""
    return bool(site.options.axis % len(site.output.shape) != 0)


@rule("PAD")
def batch_is_not_padded(site: Site) -> bool:
    """The batch axis must not be padded."""
    widths = site.value(1)
    return widths is not None and (len(site.input(0).shape) < 4 or not any(widths[:2]))


@rule("PRELU")
def slope_is_one_dimensional(site: Site) -> bool:
    """The slope must have one axis longer than 1 at most, the innermost."""
    return all(size == 1 for size in site.input(1).shape[:-1])


@rule("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize_is_three_dimensional(site: Site) -> bool:
    """Input and output of a resize must have three axes beside a batch of 1."""
    shapes = (site.input(0).shape, site.output.shape)
    return all(len(shape) == 4 and shape[0] == 1 for shape in shapes)


@rule("SOFTMAX")
def softmax_is_small(site: Site) -> bool:
    """A softmax takes one axis longer than 1, of 16,000 elements at most."""
    shape = site.input(0).shape
    return all(size == 1 for size in shape[:-1]) and shape[-1] <= MAX_SOFTMAX


@rule("SPLIT")
def batch_is_not_split(site: Site) -> bool:
    """The batch axis must not be split."""
    axis = site.value(0)
    shape = site.input(1).shape
    return axis is not None and not (len(shape) == 4 and axis[0] % len(shape) == 0)


@rule("SQUEEZE")
def squeeze_drops_leading_ones(site: Site) -> bool:
    """Only leading axes of 1 may be squeezed."""
    gone = len(site.input(0).shape) - len(site.output.shape)
    return site.input(0).shape[gone:] == site.output.shape


@rule("STRIDED_SLICE")
def slice_has_plain_strides(site: Site) -> bool:
    """A strided slice needs strides of 1, no ellipsis and no new axis."""
    strides = site.value(3)
    masks = site.options.ellipsisMask or site.options.newAxisMask
    return strides is not None and all(x == 1 for x in strides) and not masks
