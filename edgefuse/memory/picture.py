"""Arenas as one drawing (SVG): address upwards, time to the right, one rectangle a buffer.

Problem: an arena's size is one number, and nobody can see from it which buffers make it, at which
operator, or whether a gap between them does.

Panels stand below each other and share one scale in bytes, so that before and after compare by
height; each has its own operators along the same width. Panels too low to be read there are drawn
once more, enlarged, again on one scale. Marked: the step at which the most bytes are alive, with
its largest buffers by name, and the lower bound as a dashed line. Labels are thinned where they
would run into each other; every rectangle tells its full name as a tooltip.

The drawing stands by itself and may as well be set into a page: no script, no font, nothing
fetched; light or dark as the viewer is; every rule of its style begins with its own class. Names
come from models, so all are escaped. Equal arenas give equal bytes.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edgefuse.memory.arena import Arena, Live

_LEFT, _PLOT, _RIGHT = 76.0, 696.0, 308.0
_WIDTH = _LEFT + _PLOT + _RIGHT
_TALLEST, _TALLEST_ENLARGED = 380.0, 280.0
_TOO_LOW = 0.3  # of the tallest panel
_LOWEST = 6.0  # an arena far smaller than its neighbour is still seen
_HEAD, _GAP, _LINE = 30.0, 26.0, 17.0
_STEP_PITCH, _THINNED_PITCH = 14.0, 26.0
_STEP_LETTERS, _STEP_ROOM = 15, 72.0
_RULE_PITCH = 34.0
_LETTER = 6.4  # the width of a small letter in pixels, on the safe side
_NAMES_AT_PEAK = 5
_GUTTER_LETTERS, _TOLD_LETTERS = 40, 300
_KEY = "Filled: alive at the peak. Dashed: no plan in this order of operators needs less."
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_STYLE = """
.arenas{--paper:#fff;--ink:#15191e;--soft:#59626c;--line:#d9dee3;--mark:#2f5d8a;--was:#c3cad2;
--on:#fff;color-scheme:light dark;font-family:"Inter","Source Sans 3","Segoe UI",system-ui,
-apple-system,"Helvetica Neue","Liberation Sans",Arial,sans-serif;
font-variant-numeric:tabular-nums lining-nums}
@media screen and (prefers-color-scheme:dark){.arenas{--paper:#14171b;--ink:#e4e8ec;--soft:#9aa5b0;
--line:#31383f;--mark:#7fb0de;--was:#49535d;--on:#14171b}}
.arenas .ground{fill:var(--paper)}
.arenas text{fill:var(--ink);font-size:12px;dominant-baseline:central}
.arenas .head{font-size:14px;font-weight:650}
.arenas .soft{fill:var(--soft)}
.arenas .step{fill:var(--soft);font-size:10px;text-anchor:end}
.arenas .peak{fill:var(--mark);font-weight:650}
.arenas .end{text-anchor:end}
.arenas .rule{stroke:var(--line);fill:none}
.arenas .floor{stroke:var(--soft);fill:none}
.arenas .b{fill:var(--was);stroke:var(--paper)}
.arenas .b.top{fill:var(--mark)}
.arenas .b:hover{fill:var(--ink)}
.arenas .thin{stroke:none}
.arenas .in{font-size:10px;pointer-events:none}
.arenas .in.top{fill:var(--on)}
.arenas .bound{stroke:var(--ink);stroke-dasharray:5 3;fill:none}
.arenas .at{stroke:var(--mark);fill:none}
"""


@dataclass(frozen=True)
class Panel:
    """One arena of a picture.

    Attributes:
        title: what it is an arena of: ``fused``.
        names: what to call a buffer instead of its own name, as its torch module.
    """

    title: str
    arena: Arena
    names: Mapping[str, str] = field(default_factory=dict)


def picture(panels: Sequence[Panel], *, title: str = "Memory over time") -> str:
    """The drawing as SVG text, ending with a newline; panels from top to bottom."""
    most = max(map(_reach, panels), default=0)
    low = [p for p in panels if _reach(p) < _TOO_LOW * most]
    drawn, top = _stack(panels, low, _TALLEST / max(most, 1), 12.0)
    if low:
        scale = _TALLEST_ENLARGED / max(*map(_reach, low), 1)
        times = scale / (_TALLEST / max(most, 1))
        said = f"the low ones enlarged {times:.3g} times, on one scale again"
        drawn.append(f'<text class="soft" x="{_n(_LEFT)}" y="{_n(top + 6)}">{_text(said)}</text>')
        more, top = _stack(low, (), scale, top + 30)
        drawn += more
    drawn.append(f'<text class="soft" x="{_n(_LEFT)}" y="{_n(top - 4)}">{_text(_KEY)}</text>')
    top += 14
    told = "; ".join(f"{p.title}: {size_text(p.arena.arena_bytes)}" for p in panels)
    said = _text(f"{title}. {told}" if told else title)
    size = f'viewBox="0 0 {_n(_WIDTH)} {_n(top)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="arenas" {size} width="{_n(_WIDTH)}" '
        f'height="{_n(top)}" style="max-width:100%;height:auto" role="img" aria-label="{said}">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="ground" width="{_n(_WIDTH)}" height="{_n(top)}"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def size_text(value: int) -> str:
    """Bytes with a binary prefix: 3.61 MiB, 512 bytes."""
    for unit, name in _UNITS:
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return f"{value:,} bytes"


def _reach(panel: Panel) -> int:
    return max(panel.arena.arena_bytes, panel.arena.bound_bytes)


def _stack(
    panels: Sequence[Panel], bare: Sequence[Panel], scale: float, top: float
) -> tuple[list[str], float]:
    """Panels below each other, those among ``bare`` without labels; where they end."""
    drawn = []
    for panel in panels:
        body, height = _panel(panel, scale, top, labelled=panel not in bare)
        drawn += body
        top += height
    return drawn, top


def _panel(panel: Panel, scale: float, top: float, *, labelled: bool) -> tuple[list[str], float]:
    """What is drawn of one panel, and how much room it takes."""
    arena = panel.arena
    height = max(_reach(panel) * scale, _LOWEST)
    floor = top + _HEAD + height
    steps = max(len(arena.steps), 1)
    pitch = _PLOT / steps
    peak = arena.peak_step
    operators = f"{len(arena.steps):,} operator{'' if len(arena.steps) == 1 else 's'}"
    proof = "no plan is smaller" if arena.proven else "not proven smallest"
    about = f"{arena.owner}, {operators}, arena {arena.arena_bytes:,} bytes, {proof}"
    drawn = [
        f'<g><text class="head" x="{_n(_LEFT)}" y="{_n(top + 10)}">{_text(panel.title)}'
        f'<tspan class="soft" dx="10" font-size="12" font-weight="400">{_text(about)}</tspan>'
        "</text>"
    ]
    drawn += _address_axis(height, floor, scale)
    drawn += _buffers(panel, scale, floor, pitch, peak)
    drawn.append(f'<path class="floor" d="M{_n(_LEFT)} {_n(floor)}h{_n(_PLOT)}"/>')
    if not labelled:
        return [*drawn, "</g>"], _HEAD + height + _GAP
    if arena.steps:
        drawn += _peak_and_bound(panel, scale, floor, pitch, peak)
    drawn += _step_axis(arena.steps, floor, pitch, peak)
    gutter = 2 + min(len(arena.alive_at(peak)), _NAMES_AT_PEAK + 1)
    below = max(height + _STEP_ROOM, (gutter + 1) * _LINE)
    return [*drawn, "</g>"], _HEAD + below + _GAP


def _buffers(panel: Panel, scale: float, floor: float, pitch: float, peak: int) -> Iterator[str]:
    """Rectangles from the largest to the smallest, so that no small one hides."""
    arena = panel.arena
    placed = sorted(
        zip(arena.buffers, arena.offsets, strict=True),
        key=lambda pair: (-pair[0].size_bytes * (pair[0].last - pair[0].first + 1), pair[0].name),
    )
    for buffer, offset in placed:
        if buffer.size_bytes <= 0:
            continue
        x, width = _LEFT + buffer.first * pitch, (buffer.last - buffer.first + 1) * pitch
        height = buffer.size_bytes * scale
        y = floor - offset * scale - height
        kind = " top" if buffer.first <= peak <= buffer.last else ""
        thin = " thin" if width < 3 or height < 3 else ""
        yield (
            f'<rect class="b{kind}{thin}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" '
            f'height="{_n(max(height, 0.4))}"><title>{_text(_told(panel, buffer, offset))}'
            "</title></rect>"
        )
        letters = int((width - 8) / _LETTER)
        if height >= 13 and letters >= 5:
            shown = _text(_tail(_name(panel, buffer), letters))
            yield f'<text class="in{kind}" x="{_n(x + 4)}" y="{_n(y + height / 2)}">{shown}</text>'


def _told(panel: Panel, buffer: Live, offset: int) -> str:
    """A buffer's tooltip."""
    steps = panel.arena.steps
    first, last = (steps[i] if 0 <= i < len(steps) else str(i) for i in (buffer.first, buffer.last))
    name = panel.names.get(buffer.name)
    also = f" and {len(buffer.tensors) - 1} more in its place" if len(buffer.tensors) > 1 else ""
    shown = _tail(buffer.name, _TOLD_LETTERS)
    return (
        f"{shown}{f' ({name})' if name else ''}{also}: {buffer.size_bytes:,} bytes "
        f"at {offset:,}, from {first} to {last}"
    )


def _address_axis(height: float, floor: float, scale: float) -> Iterator[str]:
    """Lines at round numbers of bytes."""
    step = _round_step(_RULE_PITCH / scale)
    for place in range(int(height / scale / step) + 1):
        y = floor - place * step * scale
        label = size_text(place * step).replace(".00", "") if place else "0"
        yield f'<path class="rule" d="M{_n(_LEFT)} {_n(y)}h{_n(_PLOT)}"/>'
        yield f'<text class="soft end" x="{_n(_LEFT - 8)}" y="{_n(y)}">{_text(label)}</text>'


def _round_step(least: float) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1))))


def _step_axis(steps: Sequence[str], floor: float, pitch: float, peak: int) -> Iterator[str]:
    """Operators' labels, slanted; every second, third ... where all do not fit."""
    every = 1 if pitch >= _STEP_PITCH else math.ceil(_THINNED_PITCH / pitch)
    room = _STEP_PITCH / pitch
    for place, label in enumerate(steps):
        is_peak = place == peak
        if not is_peak and (place % every or abs(place - peak) < room):
            continue
        x, y = _LEFT + (place + 0.5) * pitch, floor + 8
        kind = "step peak" if is_peak else "step"
        yield (
            f'<text class="{kind}" transform="translate({_n(x)} {_n(y)}) rotate(-45)">'
            f"{_text(_numbered(label, _STEP_LETTERS))}"
            f"<title>{_text(_numbered(label, _TOLD_LETTERS))}</title></text>"
        )


def _peak_and_bound(
    panel: Panel, scale: float, floor: float, pitch: float, peak: int
) -> Iterator[str]:
    """The peak's step, its largest buffers beside the panel, the bound."""
    arena = panel.arena
    alive = arena.alive_at(peak)
    total = sum(buffer.size_bytes for buffer in alive)
    x, right = _LEFT + (peak + 0.5) * pitch, _LEFT + _PLOT
    roof, bound = floor - arena.arena_bytes * scale, floor - arena.bound_bytes * scale
    yield f'<path class="at" d="M{_n(x)} {_n(min(roof, bound) - 7)}V{_n(floor + 4)}"/>'
    yield f'<path class="bound" d="M{_n(_LEFT)} {_n(bound)}H{_n(right + 10)}"/>'
    equal = arena.bound_bytes == arena.arena_bytes
    lines = [
        ("", f"lower bound {size_text(arena.bound_bytes)}{', reached' if equal else ''}"),
        ("peak", f"peak {size_text(total)} at {_numbered(arena.steps[peak], 19)}"),
    ]
    for buffer in alive[:_NAMES_AT_PEAK]:
        size = size_text(buffer.size_bytes)
        name = _tail(_name(panel, buffer), _GUTTER_LETTERS - len(size))
        lines.append(("", f"{size}  {name}"))
    if len(alive) > _NAMES_AT_PEAK:
        rest = total - sum(buffer.size_bytes for buffer in alive[:_NAMES_AT_PEAK])
        lines.append(("soft", f"{size_text(rest)}  in {len(alive) - _NAMES_AT_PEAK} more"))
    y = min(roof, bound)
    for place, (kind, line) in enumerate(lines):
        shown = _text(line)
        at = _n(y + place * _LINE + (4 if place else 0))
        yield f'<text class="{kind}" x="{_n(right + 16)}" y="{at}">{shown}</text>'


def _name(panel: Panel, buffer: Live) -> str:
    """What a buffer is called in the drawing; a fused TFLite tensor has several names in one."""
    return panel.names.get(buffer.name) or buffer.name.split(";")[0]


def _numbered(label: str, letters: int) -> str:
    """A step's label cut in its middle: its number stays."""
    if len(label) <= letters:
        return label
    name, mark, number = label.rpartition("#")
    if not mark or len(number) + 3 > letters:
        return f"{label[: letters - 1]}…"
    return f"{name[: letters - len(number) - 2]}…#{number}"


def _tail(name: str, letters: int) -> str:
    """The end of a name: that is where neighbours differ."""
    return name if len(name) <= letters else f"…{name[len(name) - letters + 1 :]}"


def _n(value: float) -> str:
    """Two decimals, always the same: equal arenas give equal bytes."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _text(value: str) -> str:
    """One line of escaped text; what XML cannot hold or a screen cannot show is replaced."""
    line = " ".join(value.split())
    bad = ("Cc", "Cf", "Cs", "Cn")
    shown = ("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in bad else c for c in line)
    return html.escape("".join(shown), quote=True)
