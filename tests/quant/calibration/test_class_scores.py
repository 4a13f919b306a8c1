"""A classifier's low scores are clipped, and nothing else is mistaken for a classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.errors import StageError
from edgefuse.quant.calibration.calibrate import RANKS, calibrate
from edgefuse.quant.calibration.class_scores import KEPT_RANKS, class_evidence, class_scores
from edgefuse.quant.calibration.ranges import choose, choose_for
from edgefuse.recipe.quantize import Quantize, TensorRule
from edgefuse.tflite.read import read_model

CLASSES = 20
DRAW = np.random.default_rng(2)
HEAD = DRAW.standard_normal((CLASSES, 6)).astype(np.float32)
FEEDS = [{"x": row[None]} for row in DRAW.standard_normal((40, 6)).astype(np.float32)]


def _head(path: Path, after: str = "", classes: int = CLASSES, outputs: int = 1) -> Path:
    """x [1, 6] -> FULLY_CONNECTED -> scores [1, classes], perhaps one more operator."""
    b = Builder()
    x, scores = b.tensor("x", (1, 6)), b.tensor("scores", (1, classes))
    bias = b.tensor("bias", value=np.full(classes, -1, np.float32))
    b.op("FULLY_CONNECTED", (x, b.tensor("w", value=HEAD[:classes]), bias), (scores,))
    last = scores
    if after == "RESHAPE":
        last = b.tensor("last", (1, 1, 1, classes))
        shape = b.tensor("shape", value=np.array([1, 1, 1, classes], np.int32))
        b.op("RESHAPE", (scores, shape), (last,))
    elif after:
        last = b.tensor("last", (1, classes))
        b.op(after, (scores,), (last,))
    given = {"y": last} if outputs == 1 else {"y": last, "z": scores}
    path.write_bytes(b.finish({"x": x}, given))
    return path


@pytest.mark.parametrize("after", ["", "SOFTMAX"])
def test_the_first_ranks_stay_and_the_low_scores_go(tmp_path: Path, after: str) -> None:
    path = _head(tmp_path / "m.tflite", after)
    statistics = calibrate(path, FEEDS)
    options = Quantize(head="classes")
    found = choose_for(read_model(path), statistics, options)["scores"]
    scores = np.concatenate([f["x"] @ HEAD.T - 1 for f in FEEDS])
    ranked = -np.sort(-scores, axis=1)
    assert found.method == "classes"
    assert found.high >= scores.max() - 1e-5, "the top is never cut"
    assert scores.min() < found.low <= ranked[:, KEPT_RANKS - 1].min() + 1e-5
    kept = next(s.ranks for s in statistics if s.name == "scores")
    assert kept is not None
    np.testing.assert_allclose(kept.least, ranked[:, :RANKS].min(0), atol=1e-5)
    told = class_evidence(statistics, {s.name: found for s in statistics})
    assert told["clipped_fraction"] == pytest.approx((scores < found.low).mean(), abs=0.01)
    assert told["kept_ranks"] == KEPT_RANKS and told["least"] == pytest.approx(scores.min())


def test_few_classes_are_all_kept(tmp_path: Path) -> None:
    path = _head(tmp_path / "m.tflite", classes=3)
    statistics = calibrate(path, FEEDS)
    found = choose(statistics, "mse", 0.0, classes=class_scores(read_model(path)))["scores"]
    assert found.low <= min(float((f["x"] @ HEAD[:3].T - 1).min()) for f in FEEDS) + 1e-5
    assert found.clipped_fraction == 0.0


def test_a_rule_for_the_scores_counts_first(tmp_path: Path) -> None:
    path = _head(tmp_path / "m.tflite")
    statistics = calibrate(path, FEEDS)
    rule = TensorRule(match="scores", ranges="minmax")
    options = Quantize(head="classes", tensors=(rule,))
    assert choose_for(read_model(path), statistics, options)["scores"].method == "minmax"
    wide = choose_for(read_model(path), statistics, Quantize(head="classes", format="int16x8"))
    assert wide["scores"].low == -wide["scores"].high
    assert wide["scores"].clipped_fraction == 0.0, "int16 has steps enough for all scores"


@pytest.mark.parametrize(
    ("after", "outputs", "message"),
    [
        ("LOGISTIC", 1, "compete for the first rank; output 'last' comes from LOGISTIC#1"),
        ("RESHAPE", 1, r"needs scores \[batch, classes\], and 'last' is float32 \[1, 1, 1, 20\]"),
        ("SOFTMAX", 2, "needs one output of class scores, found 2"),
    ],
)
def test_what_is_no_classifier_is_refused(
    tmp_path: Path, after: str, outputs: int, message: str
) -> None:
    model = read_model(_head(tmp_path / "m.tflite", after, outputs=outputs))
    with pytest.raises(StageError, match=message) as caught:
        class_scores(model)
    assert caught.value.hint == "set quantize.head: values"


def test_scores_of_a_picture_model(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(float_file(weights()))
    assert class_scores(read_model(path)) == "out"
