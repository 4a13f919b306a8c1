"""Rules of :mod:`~.lint` on the samples: ranges, channels, layouts, overlap, labels.

Pictures come through the recipe's own preprocessing, so of them only the recipe's constants can be
wrong. Arrays come as somebody made them: where the recipe has a ``preprocess`` section, which is
then the contract that the bundle ships, they must look like its results,

    x = (pixels * scale - mean) / std,        pixels = 0..255

Labelled samples decide what statistics cannot: the float model is asked with the channels as they
are and reversed, and its answers are held against the labels as they are and shifted by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgefuse.quant.lint.lint import Finding
from edgefuse.quant.lint.look import Look

if TYPE_CHECKING:
    from edgefuse.data import Sample, SampleSet
    from edgefuse.fetch import Downloads
    from edgefuse.quant.lint.input_affine import InputAffine
    from edgefuse.recipe import Preprocess, Recipe

Float64 = npt.NDArray[np.float64]

IMAGENET_RGB = (0.485, 0.456, 0.406)
LABELLED = 96
_MOST_ARRAY_BYTES = 256 << 20
_APART = (
    ("calibration", "evaluation", "the figures of the gate are too good"),
    ("validation", "evaluation", "the search is judged on what it was fitted to"),
    ("training", "evaluation", "the figures of the gate are too good"),
    ("calibration", "validation", "the search cannot see what calibration overfits"),
    ("training", "validation", "the search cannot see what training overfits"),
)


def lint_samples(
    float_model: Path,
    recipe: Recipe,
    samples: Mapping[str, SampleSet],
    downloads: Downloads | None,
    looks: Mapping[str, Mapping[str, Look]],
    affines: Mapping[str, InputAffine],
) -> list[Finding]:
    """Apply the rules of this module; arguments as :func:`edgefuse.quant.lint.lint` has them."""
    contract, shapes = recipe.preprocess, {i.name: i.shape for i in recipe.model.inputs}
    found: list[Finding] = []
    if contract is not None:
        found += reversed_means(contract)
    for role, by_input in looks.items():
        if not _arrays(samples[role]):
            continue
        for name, look in by_input.items():
            colours = len(shapes[name]) == 4 and look.means.shape[1] == 3
            if contract is not None and colours:
                found += sample_range(role, look, contract)
                found += cold_pictures(role, look, contract)
            elif colours and look.raw_pixels and name not in affines:
                found.append(_raw(role, look))
            found += equal_axes(role, name, shapes[name])
    for name in looks.get("calibration", {}).keys() & looks.get("evaluation", {}).keys():
        found += exchanged_between(looks["calibration"][name], looks["evaluation"][name])
    found += shared_samples(samples, downloads)
    found += _by_labels(float_model, recipe, samples, downloads)
    return found


def _arrays(samples: SampleSet) -> bool:
    return samples.where.lower().endswith((".npz", ".npy"))


def reversed_means(contract: Preprocess) -> list[Finding]:
    """ImageNet's channel means in the other order than the recipe's colours."""
    unit = 255.0 if contract.scale > 0.5 else 1.0
    mean = tuple(value / unit for value in contract.mean)
    wrong = IMAGENET_RGB[::-1] if contract.colour == "RGB" else IMAGENET_RGB
    if max(abs(a - b) for a, b in zip(mean, wrong)) > 0.01:
        return []
    other = "BGR" if contract.colour == "RGB" else "RGB"
    return [
        Finding(
            "channel_order",
            f"colour is {contract.colour}, and the means {list(contract.mean)} are ImageNet's in "
            f"the order {other}",
            "preprocess.mean",
            f"give mean and std in the order of the colours, or set colour: {other}",
        )
    ]


def _contract_range(contract: Preprocess) -> tuple[Float64, Float64]:
    """Least and greatest value of each channel that the contract can give."""
    mean, std = np.asarray(contract.mean), np.asarray(contract.std)
    return (0.0 - mean) / std, (255.0 * contract.scale - mean) / std


def sample_range(role: str, look: Look, contract: Preprocess) -> list[Finding]:
    """Arrays outside what the contract can give, or in a small corner of it."""
    lows, highs = _contract_range(contract)
    low, high = float(lows.min()), float(highs.max())
    span = high - low
    inside = low - 0.01 * span <= look.minimum and look.maximum <= high + 0.01 * span
    if inside and look.maximum - look.minimum > 0.02 * span:
        return []
    reaches = f"the arrays hold {look.minimum:.3g}..{look.maximum:.3g}"
    if look.raw_pixels and not inside:
        reaches += " in whole numbers, as raw pixels do"
    return [
        Finding(
            "sample_range",
            f"{reaches}, and preprocess gives {low:.3g}..{high:.3g}",
            f"data.{role}, input {look.name!r}",
            "save the arrays as (pixels * scale - mean) / std, or make preprocess say what was "
            "done to them",
        )
    ]


def _raw(role: str, look: Look) -> Finding:
    return Finding(
        "sample_range",
        f"the arrays hold whole numbers {look.minimum:.3g}..{look.maximum:.3g}, as raw pixels do, "
        "and the graph does not normalise them",
        f"data.{role}, input {look.name!r}",
        "where the model was trained on normalised pictures, save the arrays normalised",
        severity="note",
    )


def cold_pictures(role: str, look: Look, contract: Preprocess) -> list[Finding]:
    """Arrays whose red is darker than their blue once the contract is undone.

    In ordinary photographs red is the brightest channel (ImageNet: 0.485, 0.456, 0.406 of white).
    By the mean difference over samples in its standard errors; at least 8 samples.
    """
    pixels = look.means * np.asarray(contract.std) + np.asarray(contract.mean)
    warm = pixels[:, 0] - pixels[:, 2]
    if contract.colour == "BGR":
        warm = -warm
    error = warm.std(ddof=1) / math.sqrt(len(warm)) if len(warm) >= 8 else 0.0
    if error == 0.0 or warm.mean() > -4.0 * error:
        return []
    return [
        Finding(
            "channel_order",
            f"blue is brighter than red by {-warm.mean() / (255 * contract.scale):.2f} of white, "
            "which photographs are not",
            f"data.{role}, input {look.name!r}",
            f"see that the arrays hold {contract.colour} (OpenCV reads BGR)",
            severity="note",
        )
    ]


def exchanged_between(calibration: Look, evaluation: Look) -> list[Finding]:
    """Three channels whose means in one set are those of the other set, reversed."""
    one, other = calibration.means, evaluation.means
    if one.shape[1] != 3 or min(len(one), len(other)) < 4:
        return []
    error = np.sqrt(one.var(axis=0, ddof=1) / len(one) + other.var(axis=0, ddof=1) / len(other))
    ends = error[[0, 2]] + 1e-9
    apart = np.abs(one.mean(axis=0) - other.mean(axis=0))[[0, 2]] / ends
    turned = np.abs(one.mean(axis=0) - other.mean(axis=0)[::-1])[[0, 2]] / ends
    if apart.min() < 5.0 or turned.max() > apart.min() / 3:
        return []
    return [
        Finding(
            "channel_order",
            "the channel means of calibration and evaluation are each other's in reverse",
            f"input {calibration.name!r}",
            "see that both are RGB, or both BGR (OpenCV reads BGR)",
        )
    ]


def equal_axes(role: str, name: str, shape: tuple[int, ...]) -> list[Finding]:
    """Arrays of 4 axes that read the same channels-first and channels-last."""
    if len(shape) != 4 or not shape[1] == shape[2] == shape[3]:
        return []
    return [
        Finding(
            "equal_axes",
            f"{list(shape)} reads the same channels-first and channels-last, so that the shape "
            "cannot tell a wrong layout",
            f"data.{role}, input {name!r}",
            "see that the axes of the arrays have the order of model.inputs",
            severity="note",
        )
    ]


def shared_samples(samples: Mapping[str, SampleSet], downloads: Downloads | None) -> list[Finding]:
    """Samples with the same content in two sets that must be apart."""
    from edgefuse.data import overlap

    rows = {role: _row_digests(found, downloads) for role, found in samples.items()}
    found = []
    for role, judged, why in _APART:
        if role not in samples or judged not in samples:
            continue
        shared = overlap(samples[role], samples[judged])
        if rows[role] and rows[judged]:
            shared = [name for digest, name in rows[role].items() if digest in rows[judged]]
        if shared:
            found.append(
                Finding(
                    "shared_samples",
                    f"{len(shared)} samples are also in data.{judged} (first: {shared[0]}): {why}",
                    f"data.{role}",
                    "take them out of one of the two (a folder's split keeps its parts apart)",
                )
            )
    return found


def _row_digests(samples: SampleSet, downloads: Downloads | None) -> dict[str, str]:
    """Name by digest of each sample of an array file; empty for pictures and very large files."""
    from edgefuse.artifact import digest_bytes

    if not _arrays(samples) or Path(samples.where).stat().st_size > _MOST_ARRAY_BYTES:
        return {}
    return {
        digest_bytes(b"".join(feed.tobytes() for _, feed in sorted(sample.feeds.items()))): (
            sample.name
        )
        for sample in samples.samples(downloads)
    }


def _by_labels(
    float_model: Path,
    recipe: Recipe,
    samples: Mapping[str, SampleSet],
    downloads: Downloads | None,
) -> list[Finding]:
    """What the labels of a labelled set tell; pictures of one input, up to 96 samples."""
    from edgefuse.labels import fits_classes
    from edgefuse.tflite.read import read_model, signature_of

    signature = signature_of(read_model(float_model))
    for role in ("evaluation", "validation"):
        found = samples.get(role)
        if found is not None and fits_classes(found, signature.outputs[0]):
            break
    else:
        return []
    scores, reversed_scores, labels = _answers(float_model, recipe, found, downloads)
    result = shifted_labels(role, scores, labels)
    if reversed_scores is not None and not result:
        result = exchanged_channels(role, scores, reversed_scores, labels)
    return result or guessed_labels(role, scores, labels)


def _answers(
    float_model: Path, recipe: Recipe, samples: SampleSet, downloads: Downloads | None
) -> tuple[Float64, Float64 | None, npt.NDArray[np.intp]]:
    """Scores of the first output for samples as they are, and with their channels reversed."""
    from edgefuse.data import batches
    from edgefuse.tflite.feeds import source_layouts, streamed
    from edgefuse.tflite.runtime import open_model

    model = open_model(float_model, threads=2)
    output = model.signature.outputs[0].name
    (only, *more) = model.signature.inputs
    colours = not more and len(only.shape) == 4 and only.shape[-1] == 3
    rows: dict[bool, list[Any]] = {False: [], True: []}
    labels: list[int] = []
    for feed, held in batches(_one_a_picture(samples, downloads), recipe.model.batch):
        (given,) = streamed(model.signature, source_layouts(recipe), [feed])
        labels += [sample.label or 0 for sample in held]
        for turned in (False, True) if colours else (False,):
            if turned:
                given = {n: np.ascontiguousarray(v[..., ::-1]) for n, v in given.items()}
            values = model.run_float(given)[output].reshape(recipe.model.batch, -1)
            rows[turned] += [np.asarray(v, np.float64) for v in values[: len(held)]]
    turned_scores = np.stack(rows[True]) if colours else None
    return np.stack(rows[False]), turned_scores, np.asarray(labels, np.intp)


def _one_a_picture(samples: SampleSet, downloads: Downloads | None) -> Iterator[Sample]:
    """The first sample of each source picture, 96 of them at most, among the first 384."""
    seen: set[str] = set()
    for sample in itertools.islice(samples.samples(downloads), 4 * LABELLED):
        if sample.group not in seen:
            seen.add(sample.group)
            yield sample
        if len(seen) == LABELLED:
            return


def shifted_labels(role: str, scores: Float64, labels: npt.NDArray[np.intp]) -> list[Finding]:
    """Labels that the float model fits far better when 1 is added to each, or taken off."""
    from edgefuse.paired import mcnemar_p

    first = scores.argmax(axis=1)
    right = np.asarray(first == labels, np.float64)
    names = [str(k) for k in range(len(labels))]
    for shift, remedy in (
        (1, "the model answers a class before these (often the background): add 1 to each label"),
        (-1, "labels start at 0: take 1 off each"),
    ):
        moved = np.asarray(first == labels + shift, np.float64)
        if moved.sum() > 2 * right.sum() and mcnemar_p(right, moved, names) < 1e-3:
            return [
                Finding(
                    "labels_shifted",
                    f"the float model is right on {100 * right.mean():.0f}% of {len(labels)} "
                    f"samples, and on {100 * moved.mean():.0f}% when {shift:+d} is added to the "
                    "labels",
                    f"data.{role}",
                    remedy,
                )
            ]
    return []


def guessed_labels(role: str, scores: Float64, labels: npt.NDArray[np.intp]) -> list[Finding]:
    """Labels of which the float model gets no more than guessing would (by chance once in 100)."""
    n, classes = scores.shape
    right = int((scores.argmax(axis=1) == labels).sum())
    by_chance = sum(
        math.comb(n, k) * (1 / classes) ** k * (1 - 1 / classes) ** (n - k)
        for k in range(right, n + 1)
    )
    if n < 20 or by_chance < 0.01:
        return []
    return [
        Finding(
            "labels_guessed",
            f"the float model is right on {right} of {n} samples, which guessing among {classes} "
            "classes would be too",
            f"data.{role}",
            "compare the order of the classes in the labels with the model's own, and the "
            "preprocessing with its training",
        )
    ]


def exchanged_channels(
    role: str, scores: Float64, turned: Float64, labels: npt.NDArray[np.intp]
) -> list[Finding]:
    """Labels that the float model fits better with red and blue exchanged.

    By the cross-entropy of each label, paired by sample: more than 2.5 standard errors less, and
    better than guessing.
    """
    gain = _cross_entropy(scores, labels) - _cross_entropy(turned, labels)
    error = gain.std(ddof=1) / math.sqrt(len(gain)) if len(gain) >= 8 else 0.0
    guessing = math.log(scores.shape[1])
    if (
        error == 0.0
        or gain.mean() < 2.5 * error
        or _cross_entropy(turned, labels).mean() > guessing
    ):
        return []
    right, moved = (100 * float((s.argmax(axis=1) == labels).mean()) for s in (scores, turned))
    return [
        Finding(
            "channel_order",
            f"the labels fit better with red and blue exchanged: cross-entropy less by "
            f"{gain.mean():.2g} +- {error:.1g}, top-1 {moved:.0f}% instead of {right:.0f}% of "
            f"{len(labels)} samples",
            f"data.{role}",
            "set the other preprocess.colour (mean and std in its order), or exchange the "
            "channels of the arrays",
        )
    ]


def _cross_entropy(scores: Float64, labels: npt.NDArray[np.intp]) -> Float64:
    """-log of the label's share; scores are logits, or probabilities where each row sums to 1."""
    own = scores[np.arange(len(labels)), labels]
    if scores.min() >= 0 and np.abs(scores.sum(axis=1) - 1).max() < 1e-3:
        return np.asarray(-np.log(np.maximum(own, 1e-9)), np.float64)
    top = scores.max(axis=1)
    total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    return np.asarray(total - own, np.float64)
