"""Windows over a picture as text: which pixel a tap reads, and whether it lies in the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgefuse.cuda.codegen.axes import Axis
from edgefuse.cuda.codegen.body import Body
from edgefuse.cuda.codegen.machine import vector_tile, vector_warps


@dataclass(frozen=True)
class Window:
    """A window's geometry.

    Attributes:
        picture: rows, columns, channels of the input.
        result: rows, columns of the output.
        extent: rows and columns of the window.
        pad: text of what stands outside the picture.
    """

    picture: tuple[int, int, int]
    result: tuple[int, int]
    extent: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    pad: str

    @property
    def taps(self) -> int:
        return self.extent[0] * self.extent[1]

    @property
    def bounded(self) -> tuple[bool, bool]:
        """Whether rows, and whether columns, may leave the picture."""
        last = [
            (result - 1) * stride - before + (extent - 1) * dilation
            for result, stride, before, extent, dilation in zip(
                self.result, self.strides, self.before, self.extent, self.dilations
            )
        ]
        return tuple(  # type: ignore[return-value]
            before > 0 or reach >= size
            for before, reach, size in zip(self.before, last, self.picture)
        )

    def corners(self, body: Body, rows: str = "r") -> None:
        """Name the first pixel of each output pixel's window: ``wn``, ``wh``, ``ww``."""
        p, q = self.result
        body.say(f"wn = {rows} // {p * q}")
        for name, index, place in (("wh", f"({rows} // {q}) % {p}", 0), ("ww", f"{rows} % {q}", 1)):
            stride = f"({index}) * {self.strides[place]}" if self.strides[place] > 1 else index
            before = f" - {self.before[place]}" if self.before[place] else ""
            body.say(f"{name} = {stride}{before}")

    def pixel(self, body: Body, i: str, j: str, prefix: str = "") -> tuple[str, str]:
        """Names the pixel that tap (i, j) reads; gives its flat index and its mask as text."""
        h, w, _ = self.picture
        down = f"{i} * {self.dilations[0]}" if self.dilations[0] > 1 else i
        along = f"{j} * {self.dilations[1]}" if self.dilations[1] > 1 else j
        body.say(f"{prefix}ph = {prefix}wh + {down}", f"{prefix}pw = {prefix}ww + {along}")
        masks = [
            f"({prefix}{name} >= 0) & ({prefix}{name} < {size})"
            for name, size, bounded in zip(("ph", "pw"), (h, w), self.bounded)
            if bounded
        ]
        return f"({prefix}wn * {h} + {prefix}ph) * {w} + {prefix}pw", " & ".join(masks)


def pixels_by_channels(body: Body) -> tuple[Axis, Axis, tuple[int, int]]:
    """Cut the output picture into tiles: the axes of pixels and of channels, and a tile's size."""
    shape = body.output.shape
    rows, channels = shape[0] * shape[1] * shape[2], shape[3]
    height, width = vector_tile(body.machine, rows, channels, body.item_bytes)
    body.warps = vector_warps((height, width), body.item_bytes)
    body.cut(rows, height, channels, width)
    r = body.axis("r", "tr", height, shape[:3], "[:, None]")
    c = body.axis("c", "tc", width, (channels,), "[None, :]")
    return r, c, (height, width)


def window(body: Body, extent: tuple[int, int], layout: str = "NHWC") -> Window:
    """The window of a launch."""
    attributes: Any = body.launch.attributes
    shape = body.tensor(body.launch.inputs[0]).shape
    order = (1, 2, 3) if layout == "NHWC" else (2, 3, 1)
    integer = body.tensor(body.launch.inputs[0]).dtype == "int8"
    pad = attributes.get("pad_value", 0)
    return Window(
        picture=(shape[order[0]], shape[order[1]], shape[order[2]]),
        result=(body.output.shape[1], body.output.shape[2]),
        extent=extent,
        strides=attributes["strides"],
        dilations=attributes.get("dilations", (1, 1)),
        before=attributes["pads"][:2],
        pad=str(int(pad)) if integer else repr(float(pad)),
    )


def both(*masks: str) -> str:
    """Masks that must all hold; empty where there is none."""
    return " & ".join(mask for mask in masks if mask)
