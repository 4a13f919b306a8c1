"""Accuracy gate: the int8 model on the target against the float one.

The int8 model runs on the target's device; the float one, which a device need not know, on this
machine, with the target's runtime where that is here. How many of the device's outputs
are bit-identical with this machine's is told beside.

Agreement of the first class, the least SQNR of any output and, for labelled samples, the top-1
drop; classes are those of the first output. Each threshold is judged by the one-sided 95% bound,
resampled by source picture, because crops of one photograph are not independent. Both models see
the same samples, so the drop is a paired figure: samples lost and gained, McNemar's exact p and the
two-sided 95% interval stand beside it, and an undecided check names the number of samples that
would decide it. ``data.report`` is measured beside and never gated. So is, for a model that brought
its own scales (QDQ), the agreement with that very model in onnxruntime: the float file holds its
weights already rounded.

On a target with runtime cuda the GPU program is judged instead, against the fused ONNX.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import Artifact, Product
from edgefuse.errors import DataError
from edgefuse.recipe import Recipe
from edgefuse.stage import Context, stage
from edgefuse.verdict import Check, evidence

if TYPE_CHECKING:
    from edgefuse.bounds import Bound, Resampling
    from edgefuse.devices.device import Device

_FEW_GROUPS = 5


@stage(
    name="gate_accuracy",
    summary="agreement, SQNR and top-1 drop of int8 against float",
    file_name="{name}_accuracy.json",
    inputs=("export", "convert", "quantize", "shrink", "fuse", "lower"),
    after=("check",),
    sections=("model.inputs", "model.tflite", "preprocess", "gates.accuracy"),
    samples=("evaluation", "report"),
    target_fields=(
        *("name", "runtime", "runtime_version", "kernels", "threads", "transport", "architecture"),
        *("emulator", "ssh", "adb", "accelerator", "gpu"),
    ),
    tools=("ai-edge-litert", "tflite-runtime", "numpy", "onnx", "onnx-ir", "onnxruntime"),
    applies=lambda recipe: recipe.gates.accuracy is not None,
    gate=True,
)
def run(inputs: Mapping[str, Artifact], recipe: Recipe, context: Context) -> Product:
    from edgefuse import metrics
    from edgefuse.bounds import agreement_bound, drop_bound
    from edgefuse.data import require_labels
    from edgefuse.devices.device import open_device
    from edgefuse.devices.measure.answers import SameAsHere, answers
    from edgefuse.labels import fits_classes, require_classes
    from edgefuse.paired import agreement_needs, drop_needs

    gate = recipe.gates.accuracy
    assert gate is not None
    samples = context.samples("evaluation")
    answer = inputs["convert"].signature.outputs[0]
    if gate.max_drop_points is not None:
        require_labels(samples, "gates.accuracy.max_drop_points")
        require_classes(samples, answer, "data.evaluation")
    if "report" in context.roles:
        require_classes(context.samples("report"), answer, "data.report")
    work = context.work / "device"
    work.mkdir()
    device = open_device(context.target, work, context.log)
    like_here = None if context.target.device in ("host", "cuda") else SameAsHere()
    reference, candidate = answers(inputs, recipe, context, "evaluation", device, like_here)
    groups = list(samples.groups)
    if len(set(groups)) < _FEW_GROUPS:
        raise DataError(
            f"data.evaluation has {len(set(groups))} source pictures: too few for any bound",
            hint=f"give at least {_FEW_GROUPS}",
        )
    resampling: Resampling = {"resamples": gate.resamples, "seed": recipe.seed}
    n = len(groups)
    checks = []
    figures: dict[str, Any] = {"samples": n, "source_pictures": len(set(groups))}
    scores, quantised = reference[0], candidate[0]
    hits = metrics.agreements(scores, quantised)
    agreement = agreement_bound(hits, groups, **resampling)
    figures["agreement_percent"] = round(agreement.point, 3)
    figures["agreement_interval_percent"] = _interval(agreement_bound, (hits, groups), resampling)
    if (limit := gate.min_agreement_percent) is not None:
        checks.append(
            _settled(
                Check("agreement", agreement.point, agreement.bound, ">=", limit, "%", n),
                lambda: agreement_needs(hits, groups, limit, **resampling),
            )
        )
    # Outputs that nobody judges need no signal.
    outputs = len(reference) if gate.min_sqnr_db is not None else 1
    sqnr = _least_sqnr(reference[:outputs], candidate[:outputs], groups, resampling)
    figures["sqnr_db"] = "exact" if sqnr is None else round(sqnr[0].point, 3)
    if gate.min_sqnr_db is not None:
        checks.append(_sqnr_check(sqnr, gate.min_sqnr_db, n))
    if fits_classes(samples, answer):
        labels = [entry.label for entry in samples.entries if entry.label is not None]
        figures |= _labelled(scores, quantised, labels) | _paired(
            scores, quantised, labels, groups, resampling
        )
        if (most := gate.max_drop_points) is not None:
            was, now = (metrics.top_k_hits(s, labels) for s in (scores, quantised))
            drop = drop_bound(was, now, groups, **resampling)
            checks.append(
                _settled(
                    Check("drop", drop.point, drop.bound, "<=", most, "points", n),
                    lambda: drop_needs(was, now, groups, most, **resampling),
                )
            )
    elif samples.labelled:
        context.warn(
            f"the labels of data.evaluation do not fit output {answer.name!r} "
            f"{list(answer.shape)}: top-1 is not measured"
        )
    if "report" in context.roles:
        figures["report"] = _report(inputs, recipe, context, device)
    if against := _against_qdq(inputs, recipe, context, candidate):
        figures["against_qdq"] = against
    if like_here is not None:
        figures["same_as_here"] = asdict(like_here)
    document = evidence(
        checks,
        target=context.target.name,
        runtime=device.describe(),
        provenance=device.provenance,
        figures=figures,
        hint="more calibration samples, a smaller quantize.tail_percent, or more evaluation "
        "pictures when it is inconclusive",
    )
    path = context.work / context.file_name
    path.write_text(json.dumps(document, sort_keys=True))
    return Product("verdict", path, evidence=document)


def _settled(check: Check, needs: Callable[[], int | None]) -> Check:
    """The check, with the samples that would settle it where it is inconclusive."""
    if check.answer != "inconclusive":
        return check
    return replace(check, needed_samples=needs() or 0)


def _least_sqnr(
    reference: list[Any], candidate: list[Any], groups: list[str], resampling: Resampling
) -> tuple[Bound, Bound] | None:
    """The SQNR of the output with the least one, and of that with the least bound, in dB; None
    when nothing differs."""
    from edgefuse import metrics
    from edgefuse.bounds import cluster_bootstrap_ratio

    found = []
    for scores, quantised in zip(reference, candidate):
        signal, noise = metrics.energies(scores, quantised)
        if noise.sum() > 0:
            found.append(
                cluster_bootstrap_ratio(
                    signal, noise, groups, side="lower", decibels=True, **resampling
                )
            )
    if not found:
        return None
    return min(found, key=lambda b: b.point), min(found, key=lambda b: b.bound)


def _sqnr_check(sqnr: tuple[Bound, Bound] | None, limit: float, n: int) -> Check:
    from edgefuse.paired import needed_samples

    if sqnr is None:
        return Check("sqnr", 999.0, 999.0, ">=", limit, "dB", n)
    least, lowest = sqnr
    return _settled(
        Check("sqnr", least.point, lowest.bound, ">=", limit, "dB", n),
        lambda: needed_samples(replace(lowest, point=least.point), limit),
    )


def _interval(
    bound: Callable[..., Bound], what: tuple[Any, ...], resampling: Resampling
) -> list[float]:
    """The two-sided 95% interval."""
    from edgefuse.bounds import TWO_SIDED_95

    sides = ("lower", "upper")
    return [round(bound(*what, side=s, tail=TWO_SIDED_95, **resampling).bound, 3) for s in sides]


def _paired(
    scores: Any, quantised: Any, labels: list[Any], groups: list[str], resampling: Resampling
) -> dict[str, Any]:
    """Float against int8 on the same samples: what was lost, what was gained, and by chance?"""
    from edgefuse.metrics import top_k_hits
    from edgefuse.paired import paired

    found = paired(top_k_hits(scores, labels), top_k_hits(quantised, labels), groups, **resampling)
    return {
        "drop_interval_points": [round(end, 3) for end in found.interval_points],
        "lost": found.lost,
        "gained": found.gained,
        "mcnemar_p": float(f"{found.p_value:.3g}"),
    }


def _labelled(scores: Any, quantised: Any, labels: list[Any]) -> dict[str, Any]:
    """Top-1 and top-5 of both, with Wilson's two-sided 95% interval, in percent."""
    from edgefuse import metrics
    from edgefuse.bounds import wilson_interval

    found: dict[str, Any] = {
        "drop_points": round(metrics.drop_points(scores, quantised, labels), 3)
    }
    for k in (1, 5):
        if scores.shape[1] <= k:
            continue
        for side, values in (("float", scores), ("int8", quantised)):
            hits = metrics.top_k_hits(values, labels, k)
            low, high = wilson_interval(float(hits.sum()), len(hits))
            found[f"top{k}_{side}_percent"] = round(100 * float(hits.mean()), 3)
            found[f"top{k}_{side}_interval_percent"] = [round(100 * low, 2), round(100 * high, 2)]
    return found


def _report(
    inputs: Mapping[str, Artifact], recipe: Recipe, context: Context, device: Device
) -> dict[str, Any]:
    from edgefuse import metrics
    from edgefuse.data import require_labels
    from edgefuse.devices.measure.answers import answers

    samples = context.samples("report")
    require_labels(samples, "data.report")
    reference, candidate = answers(inputs, recipe, context, "report", device)
    labels = [entry.label for entry in samples.entries]
    return {
        "samples": samples.count,
        "agreement_percent": round(metrics.agreement_percent(reference[0], candidate[0]), 3),
        **_labelled(reference[0], candidate[0], labels),
    }


def _against_qdq(
    inputs: Mapping[str, Artifact], recipe: Recipe, context: Context, candidate: list[Any]
) -> dict[str, Any]:
    """The int8 results beside those of the QDQ model that was given; empty for other models."""
    import math

    import numpy as np

    from edgefuse import metrics
    from edgefuse.data import batches
    from edgefuse.graph.qdq import restored
    from edgefuse.graph.verify import Runner
    from edgefuse.tflite.feeds import aligned, turned_outputs

    given = restored(inputs["export"].path) if "export" in inputs else None
    if given is None:
        return {}
    runner, batch, samples = Runner(given), recipe.model.batch, context.samples("evaluation")
    specs = inputs["convert"].signature.outputs
    columns: dict[str, list[Any]] = {spec.name: [] for spec in specs}
    done = 0
    for feed, held in batches(samples.samples(context.downloads), batch):
        answers = runner(feed)
        for name, column in columns.items():
            answer = answers[name]
            column.extend(
                (answer if len(answer) == batch else answer.reshape(batch, -1))[: len(held)]
            )
        done += len(held)
        context.progress(done, samples.count, "samples through the QDQ model")
    expected = {name: np.stack(column) for name, column in columns.items()}
    found = {
        spec.name: rows.reshape(len(rows), *(spec.shape[1:] if spec.shape[0] == batch else (-1,)))
        for spec, rows in zip(specs, candidate)
    }
    (found,) = aligned([found], turned_outputs([expected], [found]))
    pairs = [[side[s.name].reshape(samples.count, -1) for side in (expected, found)] for s in specs]
    least = min(metrics.sqnr_db(*pair) for pair in pairs)
    return {
        "agreement_percent": round(metrics.agreement_percent(*pairs[0]), 3),
        "sqnr_db": round(least, 3) if math.isfinite(least) else "exact",
    }
