"""Labels and class names that do not fit what the model answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.artifact import TensorSpec
from edgefuse.data import Entry, SampleSet
from edgefuse.errors import DataError
from edgefuse.labels import classes_of, fits_classes, require_class_names, require_classes


def _output(*shape: int, name: str = "logits") -> TensorSpec:
    return TensorSpec(name, shape, "float32")


def _samples(*labels: int | None) -> SampleSet:
    entries = tuple(Entry(f"p{k}.png", f"p{k}", label) for k, label in enumerate(labels))
    return SampleSet("d", entries, (), {}, "folder/labels.csv", lambda _: iter(()))


@pytest.mark.parametrize(
    ("shape", "classes"),
    [((1, 10), 10), ((4, 1, 1, 10), 10), ((1, 7, 7, 8), None), ((10,), None), ((1, 1), None)],
)
def test_classes(shape: tuple[int, ...], classes: int | None) -> None:
    assert classes_of(_output(*shape)) == classes


def test_labels_that_fit() -> None:
    require_classes(_samples(0, 9, 3), _output(1, 10), "data.evaluation")
    assert fits_classes(_samples(0, 9, 3), _output(1, 10))
    assert not fits_classes(_samples(0, None), _output(1, 10))
    assert not fits_classes(_samples(0, 10), _output(1, 10))
    assert not fits_classes(_samples(0, 1), _output(1, 7, 7, 10))


@pytest.mark.parametrize(
    ("labels", "hint"), [((1, 10, 3), "start at 1: take 1 off each"), ((0, 11), "from 0")]
)
def test_a_label_beyond_the_classes(labels: tuple[int, ...], hint: str) -> None:
    with pytest.raises(DataError, match=r"label 1[01] of p1\.png is none of the 10 classes 0\.\.9"
                       " of output 'logits'") as caught:  # fmt: skip
        require_classes(_samples(*labels), _output(1, 10), "data.evaluation")
    assert hint in caught.value.hint
    assert caught.value.where == "folder/labels.csv"


def test_an_output_without_classes() -> None:
    with pytest.raises(DataError, match=r"data\.report is labelled.*'boxes' is \[1, 7, 7, 8\]"):
        require_classes(_samples(0), _output(1, 7, 7, 8, name="boxes"), "data.report")


def test_class_names(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(f"class {k}" for k in range(10)) + "\n")
    require_class_names(path, (_output(1, 10),))
    require_class_names(path, (_output(1, 7, 7, 8),))
    require_class_names(path, (_output(1, 3), _output(1, 10)))
    with pytest.raises(DataError, match=r"10 names, and output 'logits' 11 classes") as caught:
        require_class_names(path, (_output(1, 11),))
    assert "background" in caught.value.hint
    with pytest.raises(DataError, match="1000 classes") as caught:
        require_class_names(path, (_output(1, 1000),))
    assert "background" not in caught.value.hint
