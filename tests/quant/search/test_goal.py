"""How far a file is from the float file, and from a goal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.errors import DataError
from edgefuse.quant.search.goal import Judge, Score, shortfall
from edgefuse.recipe.quantize import Goal
from edgefuse.tflite.runtime import open_model
from quant.weights.networks import Net, classifier, feeds, twin

Array = np.ndarray[Any, Any]


def _score(agreement: float | None, drop: float | None, sqnr_db: float) -> Score:
    return Score(agreement, drop, sqnr_db, 100)


@pytest.mark.parametrize(
    ("goal", "score", "short"),
    [
        ({"min_agreement": 0.97}, _score(0.95, None, 0), 2.0),
        ({"min_agreement": 0.97}, _score(0.99, None, 0), -2.0),
        ({"max_drop_points": 0.5}, _score(0.9, 1.25, 0), 0.75),
        ({"max_drop_points": 0.5}, _score(0.9, -1.0, 0), -1.5),
        ({"min_sqnr_db": 30}, _score(None, None, 21.5), 8.5),
        # What is missed adds up, and is not made good by what is to spare.
        ({"min_agreement": 0.97, "min_sqnr_db": 30}, _score(0.95, None, 27), 5.0),
        ({"min_agreement": 0.97, "min_sqnr_db": 30}, _score(0.95, None, 60), 2.0),
        # All reached: the least that is to spare.
        ({"min_agreement": 0.97, "min_sqnr_db": 30}, _score(0.98, None, 35), -1.0),
    ],
)
def test_shortfall(goal: dict[str, float], score: Score, short: float) -> None:
    assert shortfall(score, Goal(**goal)) == pytest.approx(short)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("judged")
    source = folder / "float.tflite"
    source.write_bytes(classifier())
    return source, twin(source, folder / "int8.tflite", feeds(source, 24, 1))


def _judge(
    source: Path,
    work: Path,
    goal: dict[str, float],
    labels: list[int] | None = None,
    count: int = 30,
) -> Judge:
    samples, asked = feeds(source, count, 5), Goal(**goal)
    return Judge(source, samples, [1] * count, labels, asked, work, kernels="reference")


def _outputs(path: Path, count: int = 30) -> Array:
    model = open_model(path, kernels="reference")
    return np.concatenate([model.run_float(feed)["y"] for feed in feeds(path, count, 5)])


def test_without_labels(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, int8 = files
    score = _judge(source, tmp_path / "w", {"min_agreement": 0.9}).score(int8)
    exact, held = _outputs(source), _outputs(int8)
    assert score.agreement == np.mean(exact.argmax(1) == held.argmax(1))
    assert score.drop_points is None
    assert score.samples == 30
    wanted = 10 * np.log10((exact**2).sum() / ((exact - held) ** 2).sum())
    assert score.sqnr_db == pytest.approx(wanted, abs=1e-3)
    assert score.told() == f"agreement {100 * score.agreement:.2f}%, SQNR {score.sqnr_db:.2f} dB"


def test_labels_give_the_drop(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, int8 = files
    exact, held = _outputs(source).argmax(1), _outputs(int8).argmax(1)
    labels = exact.tolist()
    score = _judge(source, tmp_path / "w", {"max_drop_points": 1}, labels).score(int8)
    assert score.drop_points == pytest.approx(100 * np.mean(exact != held), abs=1e-4)


def test_the_float_file_reaches_anything(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, _ = files
    goal = {"min_agreement": 1.0, "min_sqnr_db": 49.0, "max_drop_points": 0.0}
    score = _judge(source, tmp_path / "w", goal, [0] * 30).score(source)
    assert (score.agreement, score.drop_points) == (1.0, 0.0)
    assert shortfall(score, Goal(**goal)) <= 0


@pytest.mark.parametrize("right", [57, 29, 7, 99])
def test_a_goal_that_is_met_exactly_is_met(right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """57 of 100 is 0.57, and not 0.5699999999999999."""
    exact = np.eye(2, dtype=np.float32)[np.zeros(100, int)]
    held = np.eye(2, dtype=np.float32)[(np.arange(100) >= right).astype(int)]
    judge = object.__new__(Judge)
    judge._reference, judge._classes, judge._labels = [exact], True, None
    monkeypatch.setattr(Judge, "_outputs", lambda *_: [held])
    score = judge.score(Path("any"))
    assert shortfall(score, Goal(min_agreement=right / 100)) <= 0
    assert shortfall(score, Goal(min_agreement=right / 100 + 0.001)) > 0


def _rows(tmp_path: Path, shape: tuple[int, ...]) -> Path:
    """x [batch, 6] -> FULLY_CONNECTED -> RESHAPE to ``shape``."""
    net = Net(1)
    x = net.tensor("x", (shape[0], 6))
    scores = net.tensor("scores", (shape[0], int(np.prod(shape[1:]))))
    net.op("FULLY_CONNECTED", (x, net.weight("w", (int(np.prod(shape[1:])), 6)), -1), (scores,))
    wanted = net.tensor("shape", value=np.array(shape, np.int32))
    y = net.simple("RESHAPE", "y", (scores, wanted), shape)
    path = tmp_path / "rows.tflite"
    path.write_bytes(net.finish({"x": x}, {"y": y}))
    return path


def test_what_fills_a_batch_is_not_judged(tmp_path: Path) -> None:
    source = _rows(tmp_path, (4, 5))
    judge = Judge(
        source, feeds(source, 3, 0), [4, 4, 2], [0] * 10, Goal(max_drop_points=1), tmp_path / "w"
    )
    assert judge.score(source) == Score(1.0, 0.0, 999.0, 10)


def test_classes_may_have_axes_of_one(tmp_path: Path) -> None:
    source = _rows(tmp_path, (1, 1, 1, 5))
    judge = Judge(
        source, feeds(source, 4, 0), [1] * 4, None, Goal(min_agreement=0.9), tmp_path / "w"
    )
    assert judge.score(source).agreement == 1.0


def test_no_classes(tmp_path: Path) -> None:
    source = _rows(tmp_path, (1, 3, 5))
    with pytest.raises(DataError, match=r"no row of scores: \[3, 5\] a sample") as caught:
        Judge(source, feeds(source, 2, 0), [1, 1], None, Goal(min_agreement=0.9), tmp_path / "w")
    assert "min_sqnr_db" in caught.value.hint
    goal = Goal(min_sqnr_db=10)
    judge = Judge(source, feeds(source, 2, 0), [1, 1], None, goal, tmp_path / "v")
    assert judge.score(source) == Score(None, None, 999.0, 2)


def test_a_drop_needs_labels(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.validation has none"):
        _judge(files[0], tmp_path / "w", {"max_drop_points": 1})


def test_no_sample(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no samples to judge"):
        _judge(files[0], tmp_path / "w", {"min_sqnr_db": 1}, count=0)
