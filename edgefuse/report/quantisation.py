"""How the quantised file was made: the document's part ``quantisation``, and its section.

Fields of the part; what a run did not do is absent:

======================  ==========================================================================
options                 the recipe's section ``quantize``, with what a search changed
calibration_samples     how many samples the ranges are from
method, tensors         how ranges follow from values, and how many there are
max_clipped_fraction    of the values of a tensor, at most
convergence             whether the ranges have settled (:mod:`~.convergence`)
head                    what clipping a classifier's scores did
equalized               whether the file is of the equalised float file
equalisation            ``channels``, ``groups``, ``max_relative_error`` of the equalised file
rounding                layers rewritten, and the fraction of their weights that changed
head_bias               what was taken off the biases of the last layer
fine_tuning             steps, samples, first and last loss
given                   of a QDQ model: what is as given, and what is not
lint                    findings with their remedies (:mod:`edgefuse.quant.lint.lint`)
search                  goal, trials in order, what was chosen, the layers to blame
                        (:mod:`edgefuse.quant.search.search`); of a search in vain too
left                    files that a search in vain left beside the report
======================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.report import units as write
from edgefuse.report.cells import Columns, code_name, fold, grid, named, number, said, text, times
from edgefuse.report.parts import part, rows
from edgefuse.report.search_section import search_section
from edgefuse.report.units import count, finite, plural
from edgefuse.stage import REPRODUCER

if TYPE_CHECKING:
    from edgefuse.recipe import Recipe
    from edgefuse.runner import Outcome

_NAMED = 4
_LEFT = ("best.tflite", "search.json")
_FORMATS = {
    "int8": "int8 weights and activations",
    "int16x8": "int8 weights, int16 activations",
    "dynamic_range": "int8 weights, float activations",
    "float16": "float16 weights, float activations",
}
_RANGES = {
    "percentile": "percentiles",
    "minmax": "the least and the greatest value",
    "mse": "least squared error",
    "entropy": "least divergence (entropy)",
}
_GIVEN = {
    "requantized": "requantised, since an operator keeps its input's scale",
    "merged": "take the scale of what is computed from them",
    "calibrated": "no scale in the model: calibrated",
    "weights_without_scales": "weights without scales in the model: rounded",
    "fused_away": "fused into what follows, and not rounded",
}


def quantisation(recipe: Recipe, outcomes: Iterable[Outcome], out: Path) -> dict[str, Any] | None:
    """The part, or None when nothing was quantised.

    Args:
        out: the output folder. A search in vain has no product to hold its evidence and leaves it
            there; the runner removed what an earlier run had left.
    """
    held = {o.stage.name: o for o in outcomes}
    outcome = held.get("quantize")
    if outcome is None or outcome.status == "blocked":
        return None
    evidence = dict(outcome.evidence)
    left: dict[str, Any] = {}
    if outcome.status == "failed":
        folder = out / REPRODUCER
        with contextlib.suppress(OSError, ValueError):
            evidence["search"] = json.loads((folder / "search.json").read_text(encoding="utf-8"))
            left["left"] = [f"{REPRODUCER}/{n}" for n in _LEFT if (folder / n).is_file()]
        if not evidence:
            return None
    options = recipe.quantize.model_dump(mode="json", exclude_none=True, exclude={"goal"})
    changes = part(part(evidence, "search"), "options")
    options |= {key: value for key, value in changes.items() if key != "qat"}
    even = held["equalize"].evidence if "equalize" in held else {}
    if part(even, "equalize"):
        error = part(even, "parity").get("max_rel_to_peak")
        left["equalisation"] = {**part(even, "equalize"), "max_relative_error": error}
    evidence = {k: v for k, v in evidence.items() if k not in ("summary", "warnings")}
    return {"options": options, **evidence, **left}


def quantisation_section(report: Mapping[str, Any]) -> str:
    """The section of the page, as HTML; empty when the document says nothing of it."""
    held = part(report, "quantisation")
    if not held:
        return ""
    pairs = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>\n" for k, v in _facts(held) if v)
    facts = f'<dl class="figures told">{pairs}</dl>\n' if pairs else ""
    moving = "" if part(held, "given") else _moving(held)
    return facts + _given(held) + moving + _lint(held) + search_section(held)


def _facts(held: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    options = part(held, "options")
    shown = write.printable(options.get("format"))
    made = "calibration_samples" in held
    weights = write.printable(options.get("weights")).replace("_", " ")
    sides = [f"{s} {options[s]}" for s in ("input", "output") if options.get(s)]
    scales = [f"scales {weights}"] if weights and options.get("format") != "float16" else []
    yield "format", ", ".join(filter(None, [_FORMATS.get(shown, shown), *scales, *sides]))
    for key, what in (("keep_float", "left float"), ("int16", "with int16 activations")):
        names = options.get(key)
        if isinstance(names, Sequence) and not isinstance(names, str) and names:
            cut = [n if len(n) <= 48 else f"{n[:47]}…" for n in map(str, names[:_NAMED])]
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield what, f"operators whose output matches {', '.join(cut)}{more}"
    given = part(held, "given")
    if given:
        yield "scales", _as_given(given)
        if not given.get("calibrated"):
            return
    yield "ranges of the others" if given else "ranges", _ranges(held, options)
    yield "calibration", _calibration(held)
    if made and not given:
        yield "equalisation", _equalisation(held)
        yield "rounding", _rounding(part(held, "rounding"), options)
        yield "bias correction", _bias(held, options)
    tuned = part(held, "fine_tuning")
    if tuned:
        first, last = (write.number_text(tuned.get(f"{k}_loss"), 4) for k in ("first", "last"))
        yield (
            "fine-tuning",
            f"{count(tuned.get('steps')):,} steps on {count(tuned.get('samples')):,} samples, "
            f"loss {first} before and {last} after",
        )


def _ranges(held: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    method = write.printable(held.get("method") or options.get("ranges"))
    told = _RANGES.get(method, method)
    tail = finite(options.get("tail_percent"))
    if method == "percentile" and tail is not None:
        told += f", {tail:g}% cut from each end"
    if "tensors" in held:
        number = count(held.get("tensors"))
        told += f"; {number:,} {plural(number, 'tensor')}"
    clipped = finite(held.get("max_clipped_fraction"))
    if clipped is not None:
        told += f", at most {100 * clipped:.3g}% of a tensor's values clipped"
    rules = options.get("tensors")
    if isinstance(rules, Sequence) and not isinstance(rules, str) and rules:
        told += f"; {len(rules)} {plural(len(rules), 'rule')} for some of them"
    head = part(held, "head")
    if head:
        least, low = (write.number_text(head.get(key)) for key in ("least", "low"))
        told += f"; class scores clipped below {low}, where they reach {least}"
    return told


def _calibration(held: Mapping[str, Any]) -> str:
    if "calibration_samples" not in held:
        return ""
    samples = count(held.get("calibration_samples"))
    told = f"{samples:,} {plural(samples, 'sample')}"
    settling = part(held, "convergence")
    if not settling:
        return told
    moving, ranges = count(settling.get("moving")), count(held.get("tensors"))
    settled, enough = finite(settling.get("settled_at")), finite(settling.get("enough_samples"))
    if settled is not None:
        return f"{told}; the ranges had settled by {settled:,.0f}"
    if not moving:
        return f"{told}; {write.printable(settling.get('summary'))}"
    would = f"about {enough:,.0f}" if enough is not None else "more than 30 times as many"
    return (
        f"{told}; not settled: the last doubling moved {moving:,} of {ranges:,} ranges by more "
        f"than 4 int8 steps, and {would} would settle nine of ten"
    )


def _equalisation(held: Mapping[str, Any]) -> str:
    found = part(held, "equalisation")
    if not held.get("equalized"):
        return "none" if not found else "none in this file; the search could have used it"
    channels, groups = count(found.get("channels")), count(found.get("groups"))
    told = f"{channels:,} {plural(channels, 'channel')} in {groups:,} {plural(groups, 'group')}"
    error = finite(found.get("max_relative_error"))
    return told + ("" if error is None else f", relative error in float {write.power_text(error)}")


def _rounding(found: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    if options.get("rounding") != "gptq":
        return "to nearest"
    layers, samples = count(found.get("layers")), count(found.get("samples"))
    share = finite(found.get("changed_fraction"))
    told = f"GPTQ, {layers:,} {plural(layers, 'layer')} on {samples:,} samples"
    return told + ("" if share is None else f"; {100 * share:.1f}% of their weights changed")


def _bias(held: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    method, shift = options.get("correct_bias"), part(held, "head_bias")
    if method == "head":
        mean, most = (write.number_text(shift.get(k), 3) for k in ("mean_shift", "max_shift"))
        return f"of the last layer, by {mean} in the mean and {most} at most"
    if method == "layers":
        layers = count(part(held, "rounding").get("layers"))
        return f"of {layers:,} {plural(layers, 'layer')}, what rounding their weights did"
    return "none" if method in (None, "none") else write.printable(method)


def _as_given(given: Mapping[str, Any]) -> str:
    told = [
        f"{count(given.get(key)):,} {key}"
        for key in ("activations", "weights", "biases")
        if given.get(key) is not None
    ]
    followed = count(given.get("followed"))
    more = f"; {followed:,} more tensors follow from those" if followed else ""
    return f"as the model gives them: {', '.join(told)}{more}"


def _given(held: Mapping[str, Any]) -> str:
    out, given = "", part(held, "given")
    for key, what in _GIVEN.items():
        names = given.get(key)
        if isinstance(names, Sequence) and not isinstance(names, str) and names:
            items = "".join(f"<li>{code_name(name)}</li>\n" for name in names)
            out += fold(times(len(names), text(what)), f'<ul class="warnings">\n{items}</ul>\n')
    return out


def _moving(held: Mapping[str, Any]) -> str:
    farthest = part(part(held, "convergence"), "farthest_steps")
    entries = [{"tensor": k, "steps": v} for k, v in farthest.items()]
    entries.sort(key=lambda e: (-(finite(e["steps"]) or 0.0), str(e["tensor"])))
    if not entries:
        return ""
    columns: Columns = {"moved by, int8 steps#": number("steps"), "tensor": named("tensor")}
    return fold(
        times(len(entries), "ranges that the last doubling of the samples moved farthest"),
        grid("Ranges that moved farthest", columns, entries),
        "bulk",
    )


def _lint(held: Mapping[str, Any]) -> str:
    findings = rows(held, "lint")
    if "lint" not in held:
        return ""
    if not findings:
        return '<p class="note">Lint found nothing.</p>\n'
    columns: Columns = {
        "finding": named("code"),
        "severity": said("severity"),
        "where": said("where"),
        "what was seen": said("message"),
        "remedy": said("remedy"),
    }
    return grid("Lint findings", columns, findings)
