"""Where an int8 file's numbers do not fit the float ones: ranges, weight scales, biases.

Each function gives figures, which go into a report, and suspicions: sentences that say what is
wrong with which channel. Thresholds are far from what rounding, percentile ranges and bias
correction do on purpose:

    weights:  |w - s q| / |w| of a channel; s* = w.q / q.q is the scale that would fit its integers
    bias:     b against s_x s_w q_b, in real values; |q_b| + sum|q_w| max|q_x - z| against 2**31
    range:    the int8 tensor's real limits against the float values on the samples

Left alone: what a misfit costs; that is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.quant.blame.deviation import Seen
    from edgefuse.tflite.mixed import Pair
    from edgefuse.tflite.read import Tensor, TfliteModel

    Array = np.ndarray[Any, Any]

Found = tuple[dict[str, Any] | None, list[str]]

_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
# Operators whose output scale TFLite fixes.
_FIXED = ("LOGISTIC", "SOFTMAX", "LOG_SOFTMAX", "TANH", "L2_NORMALIZATION")
# Operators whose kernels keep the scale of what they read.
_KEEPING = ("AVERAGE_POOL_2D", "CONCATENATION", "PACK", "MAXIMUM", "MINIMUM", "PADV2")
QUANTILES = {"p0_01": 1e-4, "p1": 0.01, "p50": 0.5, "p99": 0.99, "p99_99": 1 - 1e-4}

_CHANNEL_ERROR = 0.1
_CHANNEL_MATTERS = 0.01
_FEW_STEPS = 8
_BIAS_OF_SPAN = 0.1
_SATURATED = 0.005
_OVERSHOOT = 0.05
_USED = 1 / 6
_SCALE_MISFIT = 0.01


def range_misfit(tensor: Tensor, seen: Seen, code: str, *, clipped_low: bool = False) -> Found:
    """The int8 range against the values seen.

    Args:
        code: the operator's.
        clipped_low: the low side is cut on purpose (a classifier's logits).
    """
    limits, values = tensor.real_range, seen.values
    assert limits is not None
    low, high = limits
    step = tensor.scales[0]
    share = (seen.saturated_low + seen.saturated_high) / seen.count
    used = (min(values.maximum, high) - max(values.minimum, low)) / step
    figures = {
        "low": low,
        "high": high,
        "step": step,
        "minimum": values.minimum,
        "maximum": values.maximum,
        "quantiles": {name: values.quantile(q) for name, q in QUANTILES.items()},
        "saturated_percent": 100 * share,
        "saturated_low_percent": 100 * seen.saturated_low / seen.count,
        "saturated_high_percent": 100 * seen.saturated_high / seen.count,
        "used_steps": max(0.0, used),
    }
    judged = (0 if clipped_low else seen.saturated_low) + seen.saturated_high
    over = max(0.0 if clipped_low else low - values.minimum, values.maximum - high)
    said = []
    if judged > _SATURATED * seen.count and over > _OVERSHOOT * (high - low):
        said.append(
            f"range {low:.3g}..{high:.3g} against values {values.minimum:.3g}.."
            f"{values.maximum:.3g}: {100 * judged / seen.count:.2g}% saturated"
        )
    steps = (high - low) / step
    if code not in _FIXED and used < _USED * steps and values.maximum > values.minimum:
        said.append(
            f"range {low:.3g}..{high:.3g} against values {values.minimum:.3g}.."
            f"{values.maximum:.3g}: they use {max(0.0, used):.3g} of {steps:.0f} steps"
            + (", since its kernel keeps the scale of what it reads" if code in _KEEPING else "")
        )
    return figures, said


def weight_misfit(pair: Pair, float_model: TfliteModel, int8_model: TfliteModel) -> Found:
    """The integers times their scales against the float weights, channel by channel."""
    import numpy as np

    found = _weights(pair, float_model, int8_model)
    if found is None:
        return None, []
    exact, integers, scales = found
    length = np.linalg.norm(exact, axis=1)
    error = np.linalg.norm(exact - integers * scales[:, None], axis=1)
    matters = np.maximum(length, error) >= _CHANNEL_MATTERS * max(float(length.max()), 1e-30)
    relative = error / np.maximum(length, 1e-30)
    steps = np.abs(integers).max(axis=1)
    worst = int(np.argmax(np.where(matters, relative, -1)))
    needed = np.abs(exact).max(axis=1) / 127
    figures = {
        "channels": len(scales),
        "error_percent": 100
        * float(np.linalg.norm(error))
        / max(float(np.linalg.norm(length)), 1e-30),
        "worst_channel": worst,
        "worst_error_percent": 100 * float(relative[worst]),
        "worst_scale": float(scales[worst]),
        "worst_scale_needed": float(needed[worst]),
        "fewest_steps": int(steps[matters].min()),
    }
    bad = np.flatnonzero(matters & (relative > _CHANNEL_ERROR))
    coarse = [int(c) for c in bad if steps[c] < _FEW_STEPS]
    said = []
    if wrong := [int(c) for c in bad if steps[c] >= _FEW_STEPS]:
        what = ", ".join(f"{c} by {100 * relative[c]:.3g}%" for c in wrong[:4])
        first = wrong[0]
        fit = float(exact[first] @ integers[first]) / float(integers[first] @ integers[first])
        said.append(
            f"weight scale does not fit its weights: int8 weights * scale differ from the float "
            f"weights, channel {what}{_more(wrong)}; channel {first} has scale "
            f"{scales[first]:.3g}, its integers need {fit:.3g}"
        )
    if coarse:
        said.append(
            f"weights of channel {_listed(coarse)} have {int(steps[coarse].max())} of 127 steps "
            f"or less: {100 * relative[coarse].max():.3g}% error"
        )
    return figures, said


def bias_misfit(
    pair: Pair, float_model: TfliteModel, int8_model: TfliteModel, span: float
) -> Found:
    """The bias in int32 steps, as the kernel reads it, against the float bias.

    Args:
        span: maximum less minimum of the layer's float result, which a bias is judged by.
    """
    import numpy as np

    from edgefuse.tflite.mixed import bias_of, bias_steps

    bias, worth = bias_of(int8_model, pair.int8_op), bias_steps(int8_model, pair.int8_op)
    if bias is None or worth is None:
        return None, []
    held = int8_model.constant(bias).astype(np.float64)
    exact_bias = bias_of(float_model, pair.float_op)
    exact = np.zeros(held.shape)
    if exact_bias is not None and exact_bias.is_float:
        exact = float_model.constant(exact_bias).astype(np.float64)
    if exact.shape != held.shape:
        return None, [f"bias has shape {held.shape}, the float file's {exact.shape}"]
    worth = np.asarray(worth, np.float64)
    wanted = exact / np.where(worth > 0, worth, np.inf)
    limit = float(np.iinfo(bias.dtype).max)
    difference = np.abs(held * worth - exact)
    reach = np.abs(held) + _reach(pair, float_model, int8_model)
    worst = int(np.argmax(difference))
    figures = {
        "max_steps": float(np.abs(held).max()),
        "limit_percent": 100 * float(np.abs(held).max()) / limit,
        "accumulator_percent": 100 * float(np.max(reach)) / limit,
        "worst_channel": worst,
        "worst_difference": float(difference[worst]),
    }
    said = []
    if over := [int(c) for c in np.flatnonzero(np.abs(wanted) > limit)]:
        said.append(
            f"bias of channel {_listed(over)} does not fit {bias.dtype}: channel {over[0]} needs "
            f"{wanted[over[0]]:.3g} steps, the limit is {limit:.3g}"
        )
    if full := [int(c) for c in np.flatnonzero(np.abs(held) >= limit) if c not in over]:
        said.append(f"bias of channel {_listed(full)} is at the limit of {bias.dtype}")
    odd = [int(c) for c in np.flatnonzero(difference > _BIAS_OF_SPAN * span)]
    if odd and not (over or full):
        at = odd[0]
        said.append(
            f"bias of channel {_listed(odd)} differs from the float bias: channel {at} adds "
            f"{held[at] * worth[at]:.3g}, in float {exact[at]:.3g}"
        )
    crowded = np.flatnonzero((reach > limit) & (np.abs(held) > limit / 2))
    if close := [int(c) for c in crowded if c not in (*over, *full)]:
        said.append(f"the sum of channel {_listed(close)} can pass the limit of {bias.dtype}")
    if bias.scales:
        ratio = np.abs(np.asarray(bias.scales) / np.where(worth > 0, worth, np.inf) - 1)
        if odd_scales := [int(c) for c in np.flatnonzero(ratio > _SCALE_MISFIT) if c < held.size]:
            said.append(
                f"bias scale of channel {_listed(odd_scales)} is not input scale * weight scale"
            )
    return figures, said


def _weights(
    pair: Pair, float_model: TfliteModel, int8_model: TfliteModel
) -> tuple[Array, Array, Array] | None:
    """Float weights and integers as [channels, values], and a scale a channel."""
    import numpy as np

    from edgefuse.tflite.inspect import WEIGHTED

    axis, place = _AXES.get(pair.int8_op.code), WEIGHTED.get(pair.int8_op.code, 0)
    if axis is None:
        return None
    old = float_model.tensors[pair.float_op.inputs[place]]
    new = int8_model.tensors[pair.int8_op.inputs[place]]
    constant = old.is_constant and new.is_constant
    if not constant or old.shape != new.shape or not new.scales or new.dtype != "int8":
        return None

    def rows(value: Array) -> Array:
        moved = np.moveaxis(value.astype(np.float64), axis, 0)
        return moved.reshape(moved.shape[0], -1)

    integers = rows(int8_model.constant(new))
    scales = np.broadcast_to(np.asarray(new.scales, np.float64), len(integers))
    zeros = np.broadcast_to(np.asarray(new.zero_points or [0], np.float64), len(integers))
    return rows(float_model.constant(old)), integers - zeros[:, None], scales


def _reach(pair: Pair, float_model: TfliteModel, int8_model: TfliteModel) -> Any:
    """The largest sum of products that a channel can come to, in accumulator steps."""
    import numpy as np

    found = _weights(pair, float_model, int8_model)
    if found is None:
        return 0.0
    place = 2 if pair.int8_op.code == "TRANSPOSE_CONV" else 0
    data = int8_model.tensors[pair.int8_op.inputs[place]]
    limits = np.iinfo(data.dtype)
    zero = data.zero_points[0] if data.zero_points else 0
    return np.abs(found[1]).sum(axis=1) * max(limits.max - zero, zero - limits.min)


def _listed(channels: Sequence[int], most: int = 4) -> str:
    return ", ".join(str(c) for c in channels[:most]) + _more(channels, most)


def _more(channels: Sequence[int], most: int = 4) -> str:
    return f" and {len(channels) - most} more" if len(channels) > most else ""
