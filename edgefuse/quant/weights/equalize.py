"""Cross-layer equalisation: let every channel use the whole of its tensor's int8 range.

One scale serves all channels of an activation, and a channel that stays small uses a few of the 256
steps. Between a layer that makes a channel and those that read it nothing but the product counts:

    W1[c] s_c, b1[c] s_c   and   W2[:, c] / s_c,   for any s_c > 0

as long as what lies between keeps the scale of a channel: ReLU, addition, padding, pooling. All
tensors that such operators join form one group and share s. ReLU6 keeps it too for a channel that
stays below 6 / s_c (Nagel et al., 2019, arXiv:1906.04721, section 4.1, where it is replaced by
ReLU): a channel is raised until 1.5 times the samples' largest value reaches 6, never lowered.

    s_c = (1 / r_c)^a,  r_c = largest |x| of channel c, as a share of the tensor's

What the activation gains the readers' weights may lose: a channel that is raised leaves them
smaller weights beside larger ones. (Nothing is lost in a depthwise convolution, whose weights have
a scale for each channel.) So each group takes the a of 0 .. 1 with the least noise at its readers,

    N(a) = sum_readers (D_x^2 sum_c |W_c|^2 / s_c^2 + g sum_o D_o^2 sum_c E[x_c^2] s_c^2) / S

with the steps D_x of the activations and D_o of a reader's output channels, the reader's signal S,
and g = 0.4, the share of the weights' noise that GPTQ leaves.

Left alone: groups that touch an input or output of the model or an operator that does not keep the
scale, grouped convolutions, weights that several layers share; and, on demand, groups that a ReLU6
bounds: a network whose rare values reach far beyond what the samples show would lose them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.quant.weights.network import Network, Step

    Array = np.ndarray[Any, Any]

SAMPLES = 256
_SIX = 6.0
_MARGIN = 1.5
_MOST = 32.0
_EXPONENTS = tuple(k / 8 for k in range(9))
_LEFT_BY_GPTQ = 0.4
_OUTPUT_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
_INPUT_AXES = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 1}
_KEEPING = frozenset(
    (
        *("ADD", "SUB", "PAD", "MEAN", "MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE"),
        *("RELU", "RELU6", "LEAKY_RELU", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"),
    )
)
_FUSED = ("NONE", "RELU", "RELU6")


@dataclass(frozen=True)
class Group:
    """Activations that share one scale a channel.

    Attributes:
        tensors: indices, in order.
        makers, readers: the layers with weights that write and read them.
        capped: whether a ReLU6 bounds one of them.
    """

    tensors: tuple[int, ...]
    makers: tuple[Step, ...]
    readers: tuple[Step, ...]
    capped: bool


def equalize(
    source: Path,
    destination: Path,
    feeds: Iterable[Mapping[str, Array]],
    *,
    capped: bool = True,
) -> dict[str, Any]:
    """Write the float .tflite with its channels equalised.

    Args:
        capped: whether groups that a ReLU6 bounds are equalised too.

    Returns:
        Evidence: groups, channels raised or lowered, the largest factor.

    Raises:
        DataError: no sample.
        StageError: an operator that torch does not have here.
    """
    import numpy as np

    from edgefuse.quant.weights.network import load_network
    from edgefuse.tflite.edit import with_constants
    from edgefuse.tflite.read import read_model

    model = read_model(source)
    network = load_network(model)
    found = [group for group in groups(network) if capped or not group.capped]
    seen = channel_ranges(network, {t for g in found for t in g.tensors}, feeds)
    constants = {t.index: model.constant(t) for t in model.tensors if t.is_constant and t.is_float}
    changed: set[int] = set()
    largest, channels = 1.0, 0
    for group in found:
        factors = _factors(group, seen, constants)
        largest = max(largest, float(factors.max()))
        channels += int((factors != 1).sum())
        for step in group.makers:
            _scale(constants, step, factors, _OUTPUT_AXES, changed, with_bias=True)
        for step in group.readers:
            _scale(constants, step, 1 / factors, _INPUT_AXES, changed, with_bias=False)
    values = {i: constants[i].astype(np.float32) for i in sorted(changed)}
    destination.write_bytes(with_constants(model.data, values))
    return {"groups": len(found), "channels": channels, "largest_factor": round(largest, 3)}


def groups(network: Network) -> list[Group]:
    """Every group whose channels may be scaled."""
    model = network.model
    joined = _Joined()
    blocked = {*model.inputs, *model.outputs}
    for step in network.steps:
        operator = step.operator
        read = [i for i in operator.inputs if i >= 0 and not model.tensors[i].is_constant]
        if operator.activation not in _FUSED:
            blocked |= set(operator.outputs)
        if operator.code in _OUTPUT_AXES:
            if not _scalable(network, step):
                blocked |= {*read, *operator.outputs}
        elif _keeps(network, step, read):
            for index in read:
                joined.join(index, operator.outputs[0])
        else:
            blocked |= {*read, *operator.outputs}
    made = {i: step for step in network.steps for i in step.operator.outputs}
    found = []
    for tensors in joined.sets(i for i in (*model.inputs, *made) if model.tensors[i].is_float):
        if blocked & set(tensors):
            continue
        makers = [s for i in tensors if (s := made[i]).operator.code in _OUTPUT_AXES]
        readers = [
            step
            for step in network.steps
            if step.operator.code in _INPUT_AXES and step.operator.inputs[0] in tensors
        ]
        capped = any(
            "RELU6" in (made[i].operator.activation, made[i].operator.code) for i in tensors
        )
        found.append(Group(tuple(tensors), tuple(makers), tuple(readers), capped))
    return found


@dataclass(frozen=True)
class ChannelRange:
    """Of each channel (last axis) of a tensor, over the samples.

    Attributes:
        peak: the largest |x|.
        power: the mean of x^2.
    """

    peak: Array
    power: Array


def channel_ranges(
    network: Network, wanted: Iterable[int], feeds: Iterable[Mapping[str, Array]]
) -> dict[int, ChannelRange]:
    """What each channel takes, over at most 256 samples."""
    import torch

    names = frozenset(wanted)
    peaks: dict[int, Any] = {}
    powers: dict[int, Any] = {}

    def see(index: int, value: Any) -> Any:
        if index in names:
            rows = value.reshape(-1, value.shape[-1])
            peak, power = rows.abs().amax(0), rows.square().mean(0).double()
            peaks[index] = torch.maximum(peaks[index], peak) if index in peaks else peak
            powers[index] = powers[index] + power if index in powers else power
        return value

    count = 0
    with torch.inference_mode():
        for feed in islice(feeds, SAMPLES):
            network.run(network.feeds(feed), on_value=see)
            count += 1
    if not count:
        raise DataError("no calibration samples to equalise with")
    return {
        index: ChannelRange(peak.double().numpy(), powers[index].numpy() / count)
        for index, peak in peaks.items()
    }


def _factors(
    group: Group, seen: Mapping[int, ChannelRange], constants: Mapping[int, Array]
) -> Array:
    """s_c of each channel, float32, rounded to 10 bits so that last bits of a CPU do not count."""
    import numpy as np

    peaks = np.stack([seen[index].peak for index in group.tensors])
    whole = _SIX / _MARGIN if group.capped else np.maximum(peaks.max(axis=1, keepdims=True), 1e-30)
    share = np.maximum((peaks / whole).max(axis=0), 1e-9)
    raised = np.clip(1 / share, 1.0, _MOST)
    best = min(_EXPONENTS, key=lambda a: _noise(group, raised**a, seen, constants))
    factors = raised**best
    if not group.capped:
        factors /= np.exp(np.log(factors).mean())
    mantissa, exponent = np.frexp(factors)
    found: Array = np.ldexp(np.round(mantissa * 1024) / 1024, exponent).astype(np.float32)
    return found


def _noise(
    group: Group,
    factors: Array,
    seen: Mapping[int, ChannelRange],
    constants: Mapping[int, Array],
) -> float:
    """Noise over signal at the readers of a group, in the measure of the module's text."""
    import numpy as np

    steps = sum(((seen[index].peak * factors).max() / 255) ** 2 for index in group.tensors)
    total = 0.0
    for step in group.readers:
        operator = step.operator
        power = seen[operator.inputs[0]].power
        weight = _by_input(constants[operator.inputs[1]], operator.code, len(factors))
        gain = (weight**2).sum(axis=(0, 2))
        signal = max(float(gain @ power), 1e-30)
        noise = steps * float((gain / factors**2).sum())
        if operator.code != "DEPTHWISE_CONV_2D":
            scaled = np.abs(weight) / factors[None, :, None]
            own = (scaled.max(axis=(1, 2)) / 127) ** 2
            places = weight.shape[2]
            noise += _LEFT_BY_GPTQ * float(own.sum() * places * (power * factors**2).sum())
        total += noise / signal
    return total


def _by_input(weight: Array, code: str, channels: int) -> Array:
    """[outputs, channels, places] of a reader's weights; of a depthwise one [1, channels, ...]."""
    if code == "DEPTHWISE_CONV_2D":
        return (
            weight.reshape(-1, channels, weight.shape[3] // channels)
            .swapaxes(0, 1)[None]
            .reshape(1, channels, -1)
        )
    rows: Array = weight.reshape(weight.shape[0], -1, channels).swapaxes(1, 2)
    return rows


def _scale(
    constants: dict[int, Array],
    step: Step,
    factors: Array,
    axes: Mapping[str, int],
    changed: set[int],
    *,
    with_bias: bool,
) -> None:
    operator = step.operator
    weight, bias = (*operator.inputs, -1)[1:3]
    axis = axes[operator.code]
    repeat = constants[weight].shape[axis] // len(factors)
    each = factors.repeat(repeat) if repeat > 1 else factors
    shape = [1] * constants[weight].ndim
    shape[axis] = -1
    constants[weight] = constants[weight] * each.reshape(shape)
    changed.add(weight)
    if with_bias and bias >= 0:
        constants[bias] = constants[bias] * each
        changed.add(bias)


def _scalable(network: Network, step: Step) -> bool:
    """Whether a layer's weights and bias are its own constants, channel by channel."""
    model, operator = network.model, step.operator
    data, weight, bias = (*operator.inputs, -1)[:3]
    held = [model.tensors[i] for i in (weight, bias) if i >= 0]
    if not all(tensor.is_constant and tensor.is_float for tensor in held):
        return False
    buffers = [tensor.buffer for tensor in held]
    own = all(sum(t.buffer == b for t in model.tensors) == 1 for b in buffers)
    shape, source = held[0].shape, model.tensors[data].shape
    whole = operator.code == "DEPTHWISE_CONV_2D" or shape[-1] == source[-1]
    used = sum(weight in other.operator.inputs for other in network.steps)
    return own and whole and used == 1


def _keeps(network: Network, step: Step, read: Sequence[int]) -> bool:
    """Whether an operator's result has the scales of its operands, channel by channel."""
    model, operator = network.model, step.operator
    if operator.code not in _KEEPING or not read:
        return False
    shapes = [model.tensors[i].shape for i in (*read, *operator.outputs)]
    if any(not shape or shape[-1] != shapes[0][-1] for shape in shapes):
        return False
    if operator.code in ("ADD", "SUB"):
        return len(read) == 2
    if operator.code == "MEAN":
        axes = network.constants.get(operator.inputs[1])
        last = len(shapes[0]) - 1
        return axes is not None and all(int(n) % len(shapes[0]) != last for n in axes.reshape(-1))
    if operator.code == "PAD":
        sides = network.constants.get(operator.inputs[1])
        return sides is not None and not int(sides[-1].abs().sum())
    return True


class _Joined:
    """Disjoint sets of tensors."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def _root(self, index: int) -> int:
        while (parent := self._parent.setdefault(index, index)) != index:
            index = parent
        return index

    def join(self, a: int, b: int) -> None:
        self._parent[self._root(a)] = self._root(b)

    def sets(self, indices: Iterable[int]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for index in sorted(indices):
            found.setdefault(self._root(index), []).append(index)
        return [found[root] for root in sorted(found, key=lambda r: found[r][0])]
