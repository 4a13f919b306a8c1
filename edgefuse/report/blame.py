"""Which layer costs what: as a table on a terminal, and as a page with two charts.

What a figure means is in :mod:`~.blame`, which measures it. The charts say nothing
that the tables below them do not. Any part of the document may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report.cells import Columns, Row, code_name, exact, grid, text
from edgefuse.report.page import page
from edgefuse.report.parts import part, rows
from edgefuse.report.table import MAX_WIDTH, padded_columns, spelling, wrapped
from edgefuse.report.units import (
    DASH,
    count,
    finite,
    number_text,
    plural,
    printable,
    seconds_text,
)

_SHOWN = 12
_DRAWN = 24
_NAME_WIDTH = 330
_BAR_WIDTH = 330
_ROW_HEIGHT = 26
_LINE = (44, 780, 16, 196)  # left, right, top, bottom of the chart along the network
_TICK = 10
_ABOUT = (
    "Each layer's quantisation, that of its weights, its bias and the tensor that it writes, was "
    "measured on real files: every tensor against the float file's, and for each layer a file in "
    "which only it is quantised and one in which only it is not."
)
_KEY = (
    "dB: signal to quantisation noise. alone: the tensor that the layer writes, on its int8 "
    "inputs; so far: the same tensor against the float model's. only it, without it: the model's "
    "outputs when only this layer is quantised, and when only this layer is not; loss: agreement "
    "lost, in points"
)


def _modules(layer: Row) -> str:
    return ", ".join(map(printable, layer.get("modules") or ()))


def _name(layer: Row) -> str:
    """The torch module, else what the tensor is called."""
    return _modules(layer) or printable(layer.get("tensor"))


def _tenths(value: Any) -> str:
    number = finite(value)
    return DASH if number is None else f"{number:.1f}"


def _share(layer: Row) -> str:
    number = finite(layer.get("noise_share_percent"))
    return DASH if number is None else f"{number:.1f}%"


def _cells(layer: Row) -> list[str]:
    """The figures of a layer as the table and the page write them."""
    only, rest = part(layer, "only_quantized"), part(layer, "only_float")
    return [
        _share(layer),
        _tenths(part(layer, "alone").get("sqnr_db")),
        _tenths(part(layer, "accumulated").get("sqnr_db")),
        _tenths(only.get("sqnr_db")),
        _tenths(only.get("agreement_loss_points")),
        _tenths(rest.get("sqnr_db")),
        _tenths(rest.get("agreement_loss_points")),
    ]


def _key(document: Row) -> str:
    samples = count(document.get("samples"))
    if not document.get("classifier") or not samples:
        return f"{_KEY}, which this model has none of: it is no classifier."
    return f"{_KEY} (one of {samples} samples is {100 / samples:.1f})."


def _whole(document: Row) -> str:
    """The int8 file as a whole, in a few words."""
    full = part(document, "full")
    said = f"int8 {_tenths(full.get('sqnr_db'))} dB"
    if document.get("classifier"):
        said += f", {_tenths(full.get('agreement_loss_points'))} points of agreement lost"
    return f"{said}; {number_text(document.get('samples'))} samples"


def _left_out(document: Row) -> list[str]:
    said = {
        "moves": "only moves values",
        "left_float": "stays float",
        "strangers": "has no twin in the float file",
    }
    return [
        f"not judged: {', '.join(map(printable, names))}: {why}"
        for key, why in said.items()
        if (names := document.get(key) or ())
    ]


def blame_table(
    document: Mapping[str, Any], *, encoding: str = "utf-8", paths: Sequence[str] = ()
) -> str:
    """The costliest layers, and all that are suspicious, at most 100 columns wide.

    Args:
        paths: the files that hold more, named in the last line.
    """
    shown, ellipsis = spelling(encoding)
    layers = rows(document, "layers")
    head = ["layer", "operator", "of noise", "alone", "so far", "only it", "loss"]
    table = [[*head, "without", "loss"]]
    for place, layer in enumerate(layers):
        if place < _SHOWN or layer.get("suspicions"):
            table.append([_name(layer), printable(layer.get("operator")), *_cells(layer)])
    spelt = [[shown(cell) for cell in row] for row in table]
    cells = padded_columns(spelt, range(2, 9), MAX_WIDTH, ellipsis)
    blocks = [["  ".join(line).rstrip() for line in cells]]
    if (more := len(layers) - len(table) + 1) > 0:
        blocks[0].append(shown(f"… and {more} more"))
    notes = []
    for layer in layers:
        for why in layer.get("suspicions") or ():
            notes += wrapped(
                shown(f"{printable(layer.get('operator'))} ({_name(layer)}): {why}"),
                MAX_WIDTH,
                "  ",
                ellipsis,
            )
    blocks += [["suspicious:", *notes]] if notes else [["nothing suspicious found"]]
    took = seconds_text(document.get("seconds"))
    ending = f"{document.get('recipe')}: {_whole(document)}, {took}"
    ending += f" -> {', '.join(paths)}" if paths else ""
    warnings = [f"warning: {warning}" for warning in document.get("warnings") or ()]
    for said in ([_key(document)], [*_left_out(document), *warnings], [ending]):
        block = [line for one in said for line in wrapped(shown(one), MAX_WIDTH, "  ", ellipsis)]
        blocks += [block] if block else []
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _noise(document: Row, layer: Row) -> tuple[float | None, float | None]:
    """What the layer adds to the outputs' noise alone, and what taking it out takes away, as
    shares of the int8 file's noise."""
    full = finite(part(document, "full").get("noise_ratio"))
    only = finite(part(layer, "only_quantized").get("noise_ratio"))
    rest = finite(part(layer, "only_float").get("noise_ratio"))
    if not full:
        return None, None
    return (
        None if only is None else only / full,
        None if rest is None else max(0.0, (full - rest) / full),
    )


def cost_chart(document: Mapping[str, Any]) -> str:
    """The costliest layers as an SVG: two bars each, in shares of the output's noise."""
    layers = rows(document, "layers")[:_DRAWN]
    shares = [_noise(document, layer) for layer in layers]
    longest = max((value or 0.0 for pair in shares for value in pair), default=0.0) or 1.0
    drawn = []
    for place, (layer, pair) in enumerate(zip(layers, shares)):
        top = place * _ROW_HEIGHT
        mark = "! " if layer.get("suspicions") else ""
        label = f"{mark}{_short(_name(layer), 26)} {printable(layer.get('operator'))}"
        middle = top + _ROW_HEIGHT / 2
        drawn.append(
            f'<text class="name" x="{_NAME_WIDTH - 10}" y="{middle:g}">{text(label)}</text>'
        )
        ends = [0.0]
        for kind, value, y in (("span", pair[0], top + 4), ("was", pair[1], top + 13)):
            if value is not None:
                width = max(1.0, _BAR_WIDTH * value / longest)
                ends.append(width)
                drawn.append(
                    f'<rect class="{kind}" x="{_NAME_WIDTH}" y="{y:g}" width="{width:.1f}" '
                    f'height="8"/>'
                )
        drawn.append(
            f'<text x="{_NAME_WIDTH + max(ends) + 8:.1f}" y="{middle:g}">{_share(layer)}</text>'
        )
    if not drawn:
        return ""
    height, width = len(layers) * _ROW_HEIGHT, _NAME_WIDTH + _BAR_WIDTH + 70
    most = f"{_name(layers[0])} with {_share(layers[0])}"
    told = f"Share of the output's noise; the largest is {most}"
    rest = len(rows(document, "layers")) - len(layers)
    more = f" {rest} more {plural(rest, 'layer')} in the table." if rest > 0 else ""
    return (
        f'<div class="wide"><svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(told)}">{"".join(drawn)}</svg></div>\n'
        '<p class="note">Upper bar, coloured: the noise when only this layer is quantised. Lower '
        "bar, grey: the noise that goes when only this layer is not. Both in shares of the int8 "
        "file's noise; the figure is their mean, which layers are ranked by. ! marks a layer that "
        f"something is wrong with.{more}</p>\n"
    )


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"…{name[1 - length :]}"


def _order(layer: Row) -> int:
    """The place of the layer's operator in the int8 file; inputs come first."""
    place = printable(layer.get("operator")).rpartition("#")[2]
    return int(place) if place.isdecimal() else -1


def network_chart(document: Mapping[str, Any]) -> str:
    """The SQNR of every layer's tensor in the order they run: a line so far, dots alone."""
    layers = sorted(rows(document, "layers"), key=_order)
    values = [
        tuple(finite(part(layer, key).get("sqnr_db")) for key in ("accumulated", "alone"))
        for layer in layers
    ]
    known = [value for pair in values for value in pair if value is not None]
    if len(layers) < 2 or not known:
        return ""
    left, right, top, bottom = _LINE
    low = _TICK * math.floor(min(*known, 0) / _TICK)
    high = _TICK * max(math.ceil(max(known) / _TICK), low // _TICK + 1)

    def x(place: int) -> float:
        return left + 8 + (right - left - 16) * place / (len(layers) - 1)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    drawn = []
    for tick in range(low, high + 1, _TICK):
        drawn.append(f'<path class="axis" d="M{left} {y(tick):.1f}H{right}"/>')
        drawn.append(f'<text class="name soft" x="{left - 8}" y="{y(tick):.1f}">{tick}</text>')
    points = [(x(p), y(so_far)) for p, (so_far, _) in enumerate(values) if so_far is not None]
    line = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    drawn.append(f'<path class="limit" fill="none" d="M{line}"/>')
    for place, (layer, (so_far, alone)) in enumerate(zip(layers, values)):
        title = (
            f"{printable(layer.get('operator'))} {_name(layer)}: alone {_tenths(alone)} dB, "
            f"so far {_tenths(so_far)} dB"
        )
        if alone is not None:
            drawn.append(
                f'<g><title>{text(title)}</title><circle class="span" cx="{x(place):.1f}" '
                f'cy="{y(alone):.1f}" r="3.2"/></g>'
            )
        if layer.get("suspicions"):
            drawn.append(f'<text x="{x(place) - 2:.1f}" y="{top - 8}">!</text>')
    worst = min(known)
    told = (
        f"SQNR of the tensors of {len(layers)} layers in the order they run; the least is "
        f"{_tenths(worst)} dB, the last {_tenths(values[-1][0])} dB"
    )
    return (
        f'<div class="wide"><svg class="chart" viewBox="0 0 {right + 10} {bottom + 12}" '
        f'role="img" aria-label="{text(told)}">{"".join(drawn)}</svg></div>\n'
        '<p class="note">In dB, from the first layer to the last. Line: so far, against the float '
        "model. Dots: alone, on the layer's int8 inputs.</p>\n"
    )


def _suspicions(document: Row) -> str:
    items = "".join(
        f"<li>{code_name(layer.get('operator'))} {text(_name(layer))}: {text(why)}</li>\n"
        for layer in rows(document, "layers")
        for why in layer.get("suspicions") or ()
    )
    return f'<ul class="warnings">\n{items}</ul>\n' if items else "<p>None was found.</p>\n"


def _place(layer: Row) -> str:
    modules = _modules(layer)
    named = f" {text(modules)}" if modules else ""
    return f"{code_name(layer.get('operator'))}{named}"


def _figures(document: Row) -> str:
    def cell(index: int) -> Any:
        return lambda layer: text(_cells(layer)[index])

    def cosine(key: str) -> Any:
        def shown(layer: Row) -> str:
            value = finite(part(layer, key).get("cosine"))
            return exact(value, DASH if value is None else f"{value:.4f}")

        return shown

    columns: Columns = {
        "layer": _place,
        "of noise#": cell(0),
        "alone dB#": cell(1),
        "cosine#": cosine("alone"),
        "so far dB#": cell(2),
        "cosine so far#": cosine("accumulated"),
        "only it dB#": cell(3),
        "loss#": cell(4),
        "without it dB#": cell(5),
        "loss without#": cell(6),
        "not measured": lambda layer: text(layer.get("not_measured")),
    }
    layers = rows(document, "layers")
    if not any(layer.get("not_measured") for layer in layers):
        columns = {k: v for k, v in columns.items() if k != "not measured"}
    return grid("What each layer costs", columns, layers) + (
        f'<p class="note">{text(_key(document))}</p>\n' if layers else ""
    )


def _ranges(document: Row) -> str:
    def figure(*keys: str) -> Any:
        def shown(layer: Row) -> str:
            held: Any = part(layer, "range")
            for key in keys:
                held = held.get(key) if isinstance(held, Mapping) else None
            value = finite(held)
            return exact(value, DASH if value is None else f"{value:.4g}")

        return shown

    columns: Columns = {
        "layer": _place,
        "low#": figure("low"),
        "high#": figure("high"),
        "least seen#": figure("minimum"),
        "0.01%#": figure("quantiles", "p0_01"),
        "median#": figure("quantiles", "p50"),
        "99.99%#": figure("quantiles", "p99_99"),
        "greatest seen#": figure("maximum"),
        "saturated %#": figure("saturated_percent"),
        "steps used#": figure("used_steps"),
        "tensor": lambda layer: code_name(layer.get("tensor")),
    }
    return grid("Ranges against the values seen", columns, rows(document, "layers"))


def _constants(document: Row) -> str:
    def figure(section: str, key: str) -> Any:
        def shown(layer: Row) -> str:
            value = finite(part(layer, section).get(key))
            return exact(value, DASH if value is None else f"{value:.3g}")

        return shown

    columns: Columns = {
        "layer": _place,
        "weights' error %#": figure("weights", "error_percent"),
        "worst channel#": figure("weights", "worst_channel"),
        "its error %#": figure("weights", "worst_error_percent"),
        "fewest steps#": figure("weights", "fewest_steps"),
        "bias, steps#": figure("bias", "max_steps"),
        "of the limit %#": figure("bias", "limit_percent"),
        "accumulator at most %#": figure("bias", "accumulator_percent"),
        "bias off by#": figure("bias", "worst_difference"),
    }
    held = [one for one in rows(document, "layers") if one.get("weights") or one.get("bias")]
    return grid("Weights and biases against the float file's", columns, held)


def _listed(items: Sequence[Any]) -> str:
    told = "".join(f"<li>{text(item)}</li>\n" for item in items)
    return f'<ul class="warnings">\n{told}</ul>\n' if told else ""


def render(document: Mapping[str, Any]) -> str:
    """The page, as one HTML text."""
    name = text(document.get("recipe")) or "unnamed recipe"
    layers = rows(document, "layers")
    summary = f"{len(layers)} layers and inputs; {_whole(document)}."
    given = printable(document.get("int8_file"))
    summary += f" The int8 file is {given}." if given else ""
    command = text(document.get("command"))
    body = (
        f'<header class="plain">\n<p class="stamp">blame</p>\n<div>\n<h1><span class="recipe">'
        f'{name}</span> layer by layer</h1>\n<p class="about">{_ABOUT}</p>\n'
        f'<p class="summary">{text(summary)}</p>\n</div>\n</header>\n'
    )
    sections = {
        "Suspicions": _suspicions(document),
        "What each layer costs": cost_chart(document),
        "Along the network": network_chart(document),
        "Figures": _figures(document),
        "Ranges": _ranges(document),
        "Weights and biases": _constants(document),
        "Not judged": _listed(_left_out(document)),
        "Warnings": _listed(document.get("warnings") or ()),
        "To repeat": f'<pre tabindex="0"><code>{command}</code></pre>\n' if command else "",
    }
    for title, content in sections.items():
        if content:
            body += f"<section>\n<h2>{title}</h2>\n<div>\n{content}</div>\n</section>\n"
    return page(f"blame: {document.get('recipe') or 'unnamed recipe'}", body)
