"""Where the windows of a convolution lie over its input, one axis at a time.

Problem: TFLite knows two paddings, SAME and VALID. A window placed otherwise costs a PAD operator,
a copy of the whole activation.

Output o of an axis reads the input from o * stride - before, ``kernel`` elements long; what lies
outside counts as zero. A kernel with zero taps in front of it or behind it reads the same, and may
lie as SAME or VALID would have it:

    y[o] = sum_j w[j] x[o * stride - before + j]
         = sum_j w'[j] x[o * stride - (before + zeros) + j],  w'[zeros + j] = w[j], else 0.

In int8 the runtime subtracts the input's zero point before it multiplies, so a tap of zero adds
exactly zero, and what SAME pads with is the zero point. Left alone: dilated windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PADDINGS = ("SAME", "VALID")  # By the schema's number.
WINDOWED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"})


@dataclass(frozen=True)
class Axis:
    """One axis of a windowed operator. ``before`` is negative where the first elements are
    never read."""

    size: int
    output: int
    kernel: int
    stride: int
    before: int

    @property
    def after(self) -> int:
        """What the last window reads past the end; negative where it ends before it."""
        return self.stride * (self.output - 1) + self.kernel - self.size - self.before

    def turned(self) -> Axis:
        """The same axis read from its end."""
        return Axis(self.size, self.output, self.kernel, self.stride, self.after)


@dataclass(frozen=True)
class Placed:
    """A kernel that fits a padding: ``kernel`` taps in all, ``zeros`` of them in front."""

    kernel: int
    zeros: int


MOST_ZEROS = 1024  # taps a kernel grows by: more would cost more than any padding


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """What SAME pads in front and behind."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def placed(axis: Axis, padding: str) -> Placed | None:
    """The smallest kernel that reads the same under ``padding``; None where there is none."""
    most = 2 * (axis.kernel + abs(axis.before) + axis.stride)
    for kernel in range(axis.kernel, min(most, axis.kernel + MOST_ZEROS) + 1):
        if padding == "SAME":
            outputs, start = (
                -(-axis.size // axis.stride),
                same_padding(axis.size, kernel, axis.stride)[0],
            )
        else:
            outputs, start = (axis.size - kernel) // axis.stride + 1, 0
        zeros = start - axis.before
        if outputs == axis.output and 0 <= zeros <= kernel - axis.kernel:
            return Placed(kernel, zeros)
    return None


def best_placed(axes: tuple[Axis, Axis], first: str) -> tuple[str, Placed, Placed] | None:
    """The padding, of SAME and VALID, whose kernel is smaller; ``first`` wins a draw."""
    found = []
    for padding in sorted(PADDINGS, key=lambda name: name != first):
        tall, wide = placed(axes[0], padding), placed(axes[1], padding)
        if tall is not None and wide is not None:
            found.append((padding, tall, wide))
    return min(found, key=lambda it: it[1].kernel * it[2].kernel, default=None)


def axes_of(
    options: Any,
    kernel: tuple[int, int],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    pads: Mapping[int, tuple[int, int]] | None = None,
) -> tuple[Axis, Axis]:
    """Rows and columns of a windowed operator.

    Args:
        options: the operator's, of the schema.
        shapes: input and output, [N, H, W, C].
        pads: what a PAD in front adds to axes 1 and 2; the input's shape is the one before it.
    """
    source, result = shapes
    axes = []
    for k, stride in ((0, options.strideH), (1, options.strideW)):
        size, around = source[k + 1], (pads or {}).get(k + 1, (0, 0))
        padded = size + sum(around)
        before = around[0]
        if PADDINGS[options.padding] == "SAME":
            before += same_padding(padded, kernel[k], stride)[0]
        axes.append(Axis(size, result[k + 1], kernel[k], stride, before))
    return axes[0], axes[1]
