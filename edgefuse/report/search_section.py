"""The search for a goal on the page: path, charts, blame, and what to write into the recipe."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report import units as write
from edgefuse.report.cells import Columns, Row, code_name, exact, grid, said, stamp, text
from edgefuse.report.parts import part, rows
from edgefuse.report.search import HEADINGS, METRICS, figure_text, layers_of, outcome_text, score_of
from edgefuse.report.search_chart import dot_chart, frontier_chart
from edgefuse.report.units import DASH, count, finite, plural, seconds_text
from edgefuse.yaml_text import written


def search_section(held: Mapping[str, Any]) -> str:
    """What the page says of a search, as HTML; empty without one."""
    search = part(held, "search")
    trials = rows(search, "trials")
    if not search:
        return ""
    told = outcome_text(search)
    out = f'<h3>Search</h3>\n<p class="lead">{text(told[:1].upper() + told[1:])}.</p>\n'
    judged = count(part(trials[0], "score").get("samples")) if trials else 0
    out += _path(search, trials)
    if judged:
        out += (
            f'<p class="note">Judged on {judged:,} {plural(judged, "sample")} of data.validation '
            "by the figures themselves; whether the result may ship is the gates' decision.</p>\n"
        )
    out += dot_chart(search) + frontier_chart(search)
    return out + _refused(search) + _blamed(search) + _recipe(search) + _left(held)


def _path(search: Row, trials: Sequence[Row]) -> str:
    def metric(key: str) -> Any:
        return lambda trial: exact(score_of(trial, key), figure_text(key, score_of(trial, key)))

    def layers(trial: Row) -> str:
        return f'<span title="{text(", ".join(_names(trial)))}">{layers_of(trial)}</span>'

    columns: Columns = {
        "#": lambda trial: str(trial["place"]),
        "candidate": lambda trial: text(trial.get("technique")) or DASH,
        **{_heading(key): metric(key) for key in METRICS},
        "float layers#": layers,
        "time beside float#": lambda t: exact(
            t.get("latency_ratio"), write.quantity(t.get("latency_ratio"), "ratio")
        ),
        "took#": lambda t: exact(t.get("seconds"), seconds_text(t.get("seconds"))),
        "goal": lambda t: stamp("reached" if t.get("meets") else "missed"),
    }
    known = {_heading(k): any(score_of(t, k) is not None for t in trials) for k in METRICS}
    known["time beside float#"] = any(finite(t.get("latency_ratio")) is not None for t in trials)
    known["float layers#"] = any(map(layers_of, trials))
    columns = {name: cell for name, cell in columns.items() if known.get(name, True)}
    entries = [{**trial, "place": place} for place, trial in enumerate(trials, 1)]
    chosen = search.get("chosen")
    return grid(
        "Candidates in the order they were tried",
        columns,
        entries,
        lambda t: "total" if t.get("technique") == chosen else "",
    )


def _heading(key: str) -> str:
    return f"{HEADINGS[key]}#"


def _names(trial: Row) -> list[str]:
    return [write.printable(name) for name in trial.get("float_layers") or ()]


def _refused(search: Row) -> str:
    items = "".join(f"<li>{text(why)}</li>\n" for why in search.get("refused") or ())
    lead = '<p class="lead">Techniques that do not know this model:</p>\n'
    return f'{lead}<ul class="warnings">\n{items}</ul>\n' if items else ""


def _blamed(search: Row) -> str:
    columns: Columns = {
        "layer to blame": _tensor,
        "operator": said("code"),
        "of the noise#": lambda b: exact(
            b.get("share_percent"), write.quantity(b.get("share_percent"), "%", 1)
        ),
    }
    table = grid("Layers to blame for the noise", columns, rows(search, "blamed"))
    return table and (
        f'{table}<p class="note">Each layer\'s share by itself, of the file that was nearest '
        "without float layers; shares overlap and need not add up to 100%.</p>\n"
    )


def _tensor(layer: Row) -> str:
    """A tensor of the float file; a fused one has the names of all that it is made of."""
    first, *others = write.printable(layer.get("tensor")).split(";")
    more = f' <span class="facts" title="{text("; ".join(others))}">+{len(others)}</span>'
    return code_name(first) + (more if others else "")


def _recipe(search: Row) -> str:
    """The options that make the chosen file without a search, as the recipe's YAML."""
    options = dict(part(search, "options"))
    tuned = options.pop("qat", None) is not None
    keep = "the nearest" if not search.get("reached") else "this"
    if not options:
        only = " and its <code>qat</code>" if tuned else ""
        return (
            f'<p class="note">The recipe\'s own options{only} make {keep} file: take '
            "<code>goal</code> out of <code>quantize</code> and nothing is searched for.</p>\n"
        )
    qat = "; <code>qat</code> stays as it is" if tuned else ""
    return (
        f'<h3>Without a search</h3>\n<p class="lead">These options make {keep} file; write them '
        f"into the recipe and take <code>goal</code> out{qat}:</p>\n"
        f'<pre tabindex="0"><code>{html.escape(written({"quantize": options}))}</code></pre>\n'
    )


def _left(held: Row) -> str:
    names = held.get("left")
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        return ""
    files = ", ".join(map(code_name, names))
    return f'<p class="note">Left beside this page: {files}.</p>\n'
