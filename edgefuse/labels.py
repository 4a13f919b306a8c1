"""Whether labels and class names fit what the model answers.

Labels are class indices from 0 in the model's own order; they fit an output ``[batch, classes]``
(further axes of 1 allowed) that has a class for each of them. A label beyond the classes, names in
another number, or an output that has no classes is wrong data, told before anything is measured.
"""

from __future__ import annotations

import math
from pathlib import Path

from edgefuse.artifact import TensorSpec
from edgefuse.data import SampleSet
from edgefuse.errors import DataError


def classes_of(output: TensorSpec) -> int | None:
    """How many classes an output answers for; None when it has none: ``[batch, rows, columns]``."""
    count = math.prod(output.shape[1:])
    return count if len(output.shape) > 1 and max(output.shape[1:]) == count > 1 else None


def fits_classes(samples: SampleSet, output: TensorSpec) -> bool:
    """Whether every sample has a label, and the output a class for each."""
    classes = classes_of(output)
    return classes is not None and all(
        entry.label is not None and entry.label < classes for entry in samples.entries
    )


def require_classes(samples: SampleSet, output: TensorSpec, role: str) -> None:
    """Check the labels of a sample set against the output that they judge.

    Args:
        samples: a labelled set.
        output: the model's first output.
        role: where the recipe has the set: ``data.evaluation``.

    Raises:
        DataError: the output has no classes, or none for some label.
    """
    classes = classes_of(output)
    shape = list(output.shape)
    if classes is None:
        raise DataError(
            f"{role} is labelled, and the model's first output {output.name!r} is {shape}: labels "
            "need [batch, classes]",
            hint="make the classes the first of model.outputs, or judge by min_sqnr_db",
            where=samples.where,
        )
    labels = [(entry.label or 0, entry.name) for entry in samples.entries]
    largest, name = max(labels)
    if largest < classes:
        return
    hint = "labels are class indices from 0 in the model's own order"
    if largest == classes and min(labels)[0] > 0:
        hint = f"these labels start at {min(labels)[0]}: take 1 off each, {hint}"
    raise DataError(
        f"{role}: label {largest} of {name} is none of the {classes} classes 0..{classes - 1} "
        f"of output {output.name!r}",
        hint=hint,
        where=samples.where,
    )


def require_class_names(path: Path, outputs: tuple[TensorSpec, ...]) -> None:
    """Check the number of class names, where the model is a classifier of one output.

    Raises:
        DataError: more or fewer names than classes.
    """
    classes = classes_of(outputs[0]) if len(outputs) == 1 else None
    if classes is None:
        return
    names = path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    if len(names) != classes:
        hint = "one name a line, in the order of the classes"
        if abs(len(names) - classes) == 1:
            hint += "; one apart is mostly a class for the background, or a heading"
        raise DataError(
            f"data.labels has {len(names)} names, and output {outputs[0].name!r} {classes} classes",
            hint=hint,
            where=str(path),
        )
