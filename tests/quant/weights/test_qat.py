"""Fine-tuning brings badly quantised networks nearer to the float network on samples not seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import Ended, edgefuse

from edgefuse.errors import DataError, StageError
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import Range, choose
from edgefuse.quant.weights import qat
from edgefuse.quant.weights.lesson import prepare
from edgefuse.quant.weights.qat import Tuned, fine_tune
from edgefuse.quant.weights.simulation import simulate
from edgefuse.quant.weights.trainable import trainable
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.recipe.quantize import Qat
from edgefuse.tflite.edit import Edit
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model
from quant.weights.networks import Feed, Net, classifier, feeds

SAMPLES = 96
#: A learning rate for networks as small as these, and as far off.
FAST = Qat(steps=40, learning_rate=2e-3, batch=8)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks this small wait for their second thread."""
    monkeypatch.setattr(qat, "_THREADS", 1)


def one_large_channel() -> bytes:
    """A classifier, one of whose channels has weights 24 times as large in every layer."""
    net, spread = Net(2), np.ones(8)
    spread[3] = 24.0
    x = net.tensor("input", (1, 12, 12, 3))
    shape = (1, 6, 6, 8)
    stem = net.conv("stem", x, shape, 3, 2, "RELU6", spread=spread.reshape(8, 1, 1, 1))
    wide = net.conv("wide", stem, shape, 3, 1, "RELU6", spread=spread.reshape(8, 1, 1, 1))
    last = net.conv("last", wide, (1, 6, 6, 16))
    return net.finish({"x": x}, {"y": net.dense("scores", net.mean("pooled", last), 10)})


def _answers(path: Path, samples: Sequence[Feed]) -> np.ndarray:
    model = open_model(path, threads=1)
    return np.concatenate([model.run_float(feed)["y"] for feed in samples])


class Case:
    """A float file, its int8 file, and how to make another from trained weights."""

    def __init__(
        self,
        folder: Path,
        data: bytes,
        narrowed: float = 1.0,
        per_tensor: bool = False,
        keep_float: Sequence[int] = (),
    ) -> None:
        self.folder, self.source, self.int8 = folder, folder / "float.tflite", folder / "i.tflite"
        self.source.write_bytes(data)
        self.options: dict[str, Any] = {"per_tensor_weights": per_tensor, "keep_float": keep_float}
        self.ranges = self._ranges(narrowed)
        self.quantize(self.source, self.int8)

    def _ranges(self, narrowed: float) -> dict[str, Range]:
        model = read_model(self.source)
        whole = {model.tensors[i].name for i in (*model.inputs, *model.outputs)}
        found = choose(calibrate(self.source, feeds(self.source, 16, seed=1)), "minmax", 0, whole)
        return {
            name: span
            if name in whole
            else replace(span, low=span.low * narrowed, high=span.high * narrowed)
            for name, span in found.items()
        }

    def quantize(self, source: Path, destination: Path) -> Path:
        quantize_file(source, destination, self.ranges, **self.options)
        return destination

    def tune(
        self,
        options: Qat = FAST,
        labels: Sequence[int] | None = None,
        name: str = "tuned.tflite",
        count: int = SAMPLES,
        **more: Any,
    ) -> Tuned:
        samples = feeds(self.source, count, seed=2)
        arguments = {"seed": 0, "work": self.folder / "work", **more}
        return fine_tune(
            self.source, self.source, self.int8, samples, count, labels, self.folder / name,
            options, **arguments,
        )  # fmt: skip

    def sqnr_db(self, path: Path) -> float:
        """On samples that nothing was made from."""
        other = feeds(self.source, 128, seed=3)
        exact, found = _answers(self.source, other), _answers(path, other)
        return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


@pytest.mark.parametrize(
    ("data", "narrowed", "per_tensor"),
    [(one_large_channel(), 1.0, True), (classifier(), 0.35, False)],
    ids=["per-tensor weights with one large channel", "ranges that clip most values"],
)
def test_other_samples_are_answered_better(
    tmp_path: Path, data: bytes, narrowed: float, per_tensor: bool
) -> None:
    case = Case(tmp_path, data, narrowed, per_tensor)
    seen: list[tuple[int, int]] = []
    tuned = case.tune(progress=lambda done, total: seen.append((done, total)))
    after = case.quantize(tmp_path / "tuned.tflite", tmp_path / "after.tflite")
    assert tuned.last_loss < 0.6 * tuned.first_loss
    assert case.sqnr_db(after) > case.sqnr_db(case.int8) + 2
    assert (tuned.steps, tuned.samples) == (40, SAMPLES)
    assert seen == [(k, 40) for k in range(1, 41)]
    assert not (tmp_path / "work").exists()
    old, new = read_model(case.int8), read_model(after)
    for one, other in zip(old.tensors, new.tensors):
        if not one.is_constant:
            assert (one.name, one.scales, one.zero_points) == (
                other.name,
                other.scales,
                other.zero_points,
            )


def test_a_second_run_gives_the_same_bytes(tmp_path: Path) -> None:
    case = Case(tmp_path, classifier(), 0.5)
    short = Qat(steps=6, learning_rate=1e-3, batch=4)
    one, other = (case.tune(short, name=f"{k}.tflite") for k in range(2))
    assert replace(one, seconds=0) == replace(other, seconds=0)
    assert one.samples == 24
    assert (tmp_path / "0.tflite").read_bytes() == (tmp_path / "1.tflite").read_bytes()
    case.tune(short, name="2.tflite", seed=1)
    assert (tmp_path / "0.tflite").read_bytes() != (tmp_path / "2.tflite").read_bytes()


def test_weights_that_only_got_worse_are_not_kept(tmp_path: Path) -> None:
    case = Case(tmp_path, classifier())
    tuned = case.tune(Qat(steps=4, learning_rate=0.5, batch=2), count=8)
    assert tuned.best_step == 0 and tuned.last_loss == tuned.first_loss
    again = case.quantize(tmp_path / "tuned.tflite", tmp_path / "again.tflite")
    assert case.sqnr_db(again) == case.sqnr_db(case.int8)


def test_labels_may_share_in_the_loss(tmp_path: Path) -> None:
    case = Case(tmp_path, classifier(), 0.35)
    labels = [4] * 32
    case.tune(FAST.model_copy(update={"label_weight": 1.0}), labels, count=32)
    after = case.quantize(tmp_path / "tuned.tflite", tmp_path / "after.tflite")
    other = feeds(case.source, 64, seed=3)
    before, found = _answers(case.int8, other), _answers(after, other)
    assert (found.argmax(1) == 4).mean() > (before.argmax(1) == 4).mean() + 0.2


def test_labels_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    case = Case(tmp_path, classifier())
    options = Qat(steps=1, label_weight=0.5)
    with pytest.raises(DataError, match=r"label_weight 0.5 needs a label for each sample"):
        case.tune(options, count=4)
    with pytest.raises(DataError, match=r"labels 0..10 do not fit 10 classes"):
        case.tune(options, [0, 1, 2, 10], count=4)
    with pytest.raises(DataError, match="no samples to fine-tune on"):
        case.tune(count=0)


def test_a_loss_that_is_no_number_stops_it(tmp_path: Path) -> None:
    # An int8 output would saturate.
    case = Case(tmp_path, classifier(), keep_float=[6])
    far = Qat.model_construct(steps=20, learning_rate=1e30, batch=2, label_weight=0.0)
    with pytest.raises(StageError, match=r"at step \d+ of 20, learning rate .*the loss is") as told:
        case.tune(far, count=4)
    assert "learning_rate" in told.value.hint
    assert not (tmp_path / "tuned.tflite").exists() and not (tmp_path / "work").exists()
    rows = [{"x": np.full_like(row["x"], np.nan)} for row in feeds(case.source, 2, seed=2)]
    with pytest.raises(StageError, match="before anything is trained"):
        fine_tune(
            case.source, case.source, case.int8, rows, 2, None, tmp_path / "tuned.tflite", FAST,
            seed=0, work=tmp_path / "work",
        )  # fmt: skip


def test_constants_that_share_their_bytes_part(tmp_path: Path) -> None:
    edit = Edit(classifier())
    named = {tensor.name.decode(): tensor for tensor in edit.graph.tensors}
    named["deep/b"].buffer = named["stem/b"].buffer = named["wide/b"].buffer
    case = Case(tmp_path, edit.packed(), 0.5)
    case.tune(Qat(steps=3, learning_rate=1e-3, batch=2))
    model = read_model(tmp_path / "tuned.tflite")
    found = {t.name: model.constant(t) for t in model.tensors if t.name.endswith("/b")}
    assert not np.array_equal(found["stem/b"], found["deep/b"])
    assert not np.array_equal(found["wide/b"], found["deep/b"])


def test_samples_that_would_mix_run_one_by_one(tmp_path: Path) -> None:
    net = Net(1)
    x = net.tensor("input", (1, 6, 6, 4))
    folded = net.tensor("folded", value=np.array([36, 4], np.int32))
    rows = net.simple("RESHAPE", "rows", (x, folded), (36, 4))
    kind = ("BatchMatMulOptions", {"adjY": True})
    products = net.simple("BATCH_MATMUL", "products", (rows, rows), (36, 36), options=kind)
    one = net.tensor("one", value=np.array([1, 1296], np.int32))
    flat = net.simple("RESHAPE", "flat", (products, one), (1, 1296))
    data = net.finish({"x": x}, {"y": net.dense("scores", flat, 5)})
    case = Case(tmp_path, data, 0.6)
    options = Qat(steps=2, learning_rate=1e-4, batch=4)
    samples = feeds(case.source, 8, seed=2)
    lesson = prepare(case.source, samples, 8, None, options, 0, tmp_path / "samples")
    assert [(len(rows), share) for rows, share in lesson.grouped(np.arange(4))] == [(1, 0.25)] * 4
    student = trainable(simulate(read_model(case.source), read_model(case.int8)))
    apart = [float(lesson.loss(student, np.array([k])).detach()) for k in range(8)]
    assert lesson.loss_now(student) == pytest.approx(np.mean(apart))
    exact = _answers(case.source, samples)
    np.testing.assert_allclose(lesson.exact[0][:, 0], exact, atol=1e-4 * np.abs(exact).max())
    assert sorted(lesson.order.tolist()) == list(range(8))
    assert case.tune(options, count=8).samples == 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample sets for a recipe of a float .tflite, and a cache."""
    made = tmp_path_factory.mktemp("qat")
    model = made / "net.tflite"
    model.write_bytes(one_large_channel())
    for role, seed in (("calibration", 1), ("training", 2), ("validation", 3), ("evaluation", 4)):
        rows = feeds(model, 64, seed)
        np.savez(made / f"{role}.npz", x=np.concatenate([row["x"] for row in rows]))
    return made


def _run(folder: Path, name: str, quantize: dict[str, Any]) -> tuple[Ended, dict[str, Any]]:
    """Run a recipe of per-tensor weights to its quantised file; the stage's evidence."""
    document = {
        "schema": 1,
        "name": name,
        "model": {
            "tflite": {"path": "net.tflite"},
            "inputs": [{"name": "x", "shape": [1, 12, 12, 3]}],
            "outputs": ["y"],
        },
        "data": {
            role: {"arrays": f"{role}.npz"}
            for role in ("calibration", "training", "validation", "evaluation")
        },
        "quantize": {"weights": "per_tensor", **quantize},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    out = folder / "build" / name
    ended = edgefuse("run", path, "--until", "quantize", "--out", out, "--json")
    report = out / "report.json"
    return ended, json.loads(report.read_text()) if report.exists() else {}


TUNING = {"steps": 40, "learning_rate": 2e-3, "batch": 8}


def test_a_recipe_may_ask_for_it_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(folder / "cache"))
    plain, _ = _run(folder, "plain", {})
    ended, report = _run(folder, "alone", {"qat": TUNING})
    assert (plain.code, ended.code) == (0, 0), ended.err
    said = {row["name"]: row["summary"] for row in report["stages"]}["quantize"]
    assert "6 ranges from 64 samples, fine-tuned on 64" in said
    other = feeds(folder / "net.tflite", 64, seed=5)

    def noise(path: Path) -> float:
        exact, found = _answers(folder / "net.tflite", other), _answers(path, other)
        return float(((exact - found) ** 2).sum())

    files = [
        folder / "build" / name / f"{name}_full_integer_quant.tflite" for name in ("plain", "alone")
    ]
    assert noise(files[1]) < 0.4 * noise(files[0])


def test_it_is_the_last_resort_of_a_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(folder / "cache"))
    # Beyond what int8 can do here.
    ended, _ = _run(folder, "search", {"qat": TUNING, "goal": {"min_sqnr_db": 48.0}})
    assert ended.code == 1
    assert "more quantize.qat.steps" in ended.err and "add quantize.qat" not in ended.err
    path = folder / "build" / "search" / "reproducer" / "search.json"
    trials = json.loads(path.read_text())["trials"]
    assert trials[-1]["technique"] == "fine-tuning, 40 steps"
    assert trials[-1]["options"]["qat"] == "the recipe's"
    assert trials[-1]["score"]["sqnr_db"] > trials[0]["score"]["sqnr_db"] + 6
    assert [trial["technique"] for trial in trials].count("fine-tuning, 40 steps") == 1
