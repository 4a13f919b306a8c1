from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.devices.device import Place, Provenance
from edgefuse.devices.measure.bench_worker import random_feeds
from edgefuse.devices.measure.conformance import apart, difference, examine, revealed
from edgefuse.devices.measure.kernel_paths import KernelPath, LocalKernels, kernel_paths
from edgefuse.errors import DeviceUnavailable, StageError
from edgefuse.target import Emulator, Ssh, Target
from edgefuse.tflite.edit import with_constants
from edgefuse.tflite.read import parse_model, read_model, signature_of
from edgefuse.tflite.runtime import open_model

Array = np.ndarray[Any, Any]


class InProcess:
    """The reference kernels here, after ``change`` was done to the file."""

    provenance: Provenance = "measured"

    def __init__(self, folder: Path, weight: str = "", step: int = 0) -> None:
        self._folder, self._weight, self._step = folder, weight, step

    def describe(self) -> str:
        return "here"

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        data, source = model.read_bytes(), read_model(model)
        for tensor in source.tensors:
            if self._weight and tensor.name == self._weight:
                value = source.constant(tensor).copy()
                value.reshape(-1)[0] += self._step
                data = with_constants(data, {tensor.index: value})
        path = self._folder / "played.tflite"
        path.write_bytes(data)
        opened = open_model(path, kernels="reference")
        for feed in feeds:
            yield opened.run(feed)


class Refusing(InProcess):
    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(folder)
        self._error = error

    def outputs(
        self, model: Path, feeds: Iterable[Mapping[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        raise self._error


def feeds_of(model: Path, count: int = 2) -> list[dict[str, Array]]:
    return [random_feeds(signature_of(read_model(model)), seed) for seed in range(count)]


def played(model: Path, work: Path, path: KernelPath, **more: Any) -> dict[str, Any]:
    """The row of one path; golden are the reference kernels in this process."""
    paths = [KernelPath("litert-reference", InProcess(work)), path]
    document = examine(model, feeds_of(model), paths, work, **more)
    assert document["paths"][0]["label"] == "bit-exact"
    row: dict[str, Any] = document["paths"][1]
    return row


def weight_of(model: Path, place: int) -> str:
    source = read_model(model)
    return source.tensors[source.operators[place].inputs[1]].name


@pytest.mark.parametrize("place", [1, 3, 6])
def test_planted_departure_is_found(files: tuple[Path, Path], tmp_path: Path, place: int) -> None:
    """One changed weight: the operator that reads it departs first."""
    other = InProcess(tmp_path, weight_of(files[1], place), -120)
    row = played(files[1], tmp_path, KernelPath("other", other), max_lsb=0)
    assert row["label"] == row["text"] == "different"
    assert row["largest"] >= 1 and row["unit"] == "LSB" and row["vectors"] >= 1
    wanted = read_model(files[1]).operators[place]
    assert row["departure"]["operator"] == wanted.label
    assert row["departure"]["tensor"] == read_model(files[1]).tensors[wanted.outputs[0]].name
    assert row["departure"]["note"] == ""


def test_a_few_steps_are_within(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = InProcess(tmp_path, weight_of(files[1], 6), -120)
    row = played(files[1], tmp_path, KernelPath("other", other), max_lsb=255)
    assert row["label"] == "within"
    assert row["text"] == f"within {row['largest']:.0f} LSB"


def test_float_file_is_exact_or_different(files: tuple[Path, Path], tmp_path: Path) -> None:
    row = played(files[0], tmp_path, KernelPath("same", InProcess(tmp_path)))
    assert (row["label"], row["departure"]) == ("bit-exact", None)
    other = InProcess(tmp_path, weight_of(files[0], 3), 1)
    row = played(files[0], tmp_path, KernelPath("other", other), max_lsb=255)
    assert (row["label"], row["unit"]) == ("different", "absolute")
    assert row["departure"]["operator"] == "CONV_2D#3"


def test_stored_golden_is_what_counts(files: tuple[Path, Path], tmp_path: Path) -> None:
    feeds = feeds_of(files[1])
    golden = list(InProcess(tmp_path).outputs(files[1], feeds))
    golden[1] = {name: value ^ 1 for name, value in golden[1].items()}
    path = KernelPath("litert-reference", InProcess(tmp_path))
    document = examine(files[1], feeds, [path], tmp_path, golden=golden, max_lsb=0)
    (row,) = document["paths"]
    assert (row["label"], row["largest"], row["vectors"]) == ("different", 1, 1)
    assert row["reason"] == "no operator departs when every result is shown"
    assert document["golden"] == {"kernels": "litert-reference", "stored": True, "vectors": 2}


def test_what_cannot_be_compared_is_plain_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    feeds = feeds_of(files[1], 1)
    golden = [{"logits": np.zeros((1, 7), np.int8)}]
    path = KernelPath("litert-reference", InProcess(tmp_path))
    document = examine(files[1], feeds, [path], tmp_path, golden=golden)
    (row,) = document["paths"]
    assert (row["label"], row["largest"]) == ("different", None)
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (DeviceUnavailable("off", hint="edgefuse setup x"), "not played"),
        (StageError("refused CONV_2D#0"), "failed"),
    ],
)
def test_what_does_not_run_is_listed(
    files: tuple[Path, Path], tmp_path: Path, error: Exception, label: str
) -> None:
    row = played(files[1], tmp_path, KernelPath("bad", Refusing(tmp_path, error)))
    assert row["label"] == label
    assert row["reason"] in ("off: edgefuse setup x", "refused CONV_2D#0")
    row = played(files[1], tmp_path, KernelPath("none", None, "no simulator"))
    assert (row["label"], row["reason"]) == ("not played", "no simulator")


def test_without_reference_kernels_there_is_no_golden(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(DeviceUnavailable, match="no golden"):
        examine(files[1], feeds_of(files[1]), [KernelPath("other", None)], tmp_path)


def test_every_local_path_in_a_process_of_its_own(files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("tflite_runtime")
    place = Place(tmp_path / "w", tmp_path / "log", tmp_path)
    place.work.mkdir()
    paths = [p for p in kernel_paths([], place) if p.name.startswith(("litert", "tflite"))]
    assert len(paths) == 6
    document = examine(files[1], feeds_of(files[1]), paths, tmp_path)
    rows = {row["path"]: row for row in document["paths"]}
    assert document["played"] == 6
    assert rows["litert-reference"]["label"] == "bit-exact"
    assert rows["tflite-runtime-reference"]["label"] == "bit-exact"
    assert rows["litert-reference"]["what"].startswith("ai-edge-litert ")
    assert list(place.work.iterdir()) == []


def test_tensorflow_plays_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    # Not imported here: LiteRT would find TensorFlow's delegate in this process, and crash on it.
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    place = Place(tmp_path / "w", tmp_path / "log", tmp_path)
    place.work.mkdir()
    feeds = feeds_of(files[1])
    found = list(LocalKernels("tensorflow", "reference", place).outputs(files[1], feeds))
    for outputs, wanted in zip(found, InProcess(tmp_path).outputs(files[1], feeds)):
        assert all((outputs[name] == wanted[name]).all() for name in wanted)


def test_targets_are_never_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "edgefuse.devices.measure.kernel_paths.open_device", lambda *_: InProcess(tmp_path)
    )
    plain = {"summary": "s", "transport": "local"}
    host = Target(name="host", runtime="litert", **plain)
    coral = Target(name="coral", runtime="edgetpu", **plain)
    micro = Target(name="micro", runtime="tflite_micro", **plain)
    emulated = Target(
        name="emu",
        runtime="litert",
        emulator=Emulator(architecture="aarch64", cpu="cortex-a53"),
        **plain,
    )
    board = Target(
        **{**plain, "transport": "ssh"},
        name="board",
        runtime="litert",
        architecture="aarch64",
        ssh=Ssh(host="h"),
    )
    place = Place(tmp_path, tmp_path / "log", tmp_path)
    targets = [host, coral, micro, emulated, board]
    paths = {path.name: path for path in kernel_paths(targets, place) if "-" not in path.name}
    assert list(paths) == ["coral", "micro", "emu", "board"]
    assert paths["micro"].player is not None and paths["emu"].player is not None
    assert "no simulator" in paths["coral"].reason
    assert paths["board"].reason == "a board: name it with --path board"
    named = {path.name: path for path in kernel_paths([board], place, ["board"])}
    assert named["board"].player is not None


def test_difference() -> None:
    eight = np.array([1, -128, 127], np.int8)
    assert difference(eight, eight).share == 0
    # Without overflow: from -128 to 127 are 255 steps.
    assert difference(eight[[0, 2, 1]], eight).largest == 255
    assert difference(eight[:2], eight).largest == np.inf
    assert difference(eight.astype(np.int16), eight).largest == np.inf
    real = np.array([1.0, np.nan], np.float32)
    assert difference(real, real).share == 0
    gap = difference(np.array([1.5, np.nan], np.float32), real)
    assert (gap.largest, gap.share, gap.unit) == (0.5, 0.5, "absolute")
    assert difference(np.array([1.0, 0.0], np.float32), real).largest == np.inf
    assert apart({}, {"y": eight}).largest == np.inf
    both, near = {"y": eight, "z": real}, {"y": eight[[0, 2, 1]], "z": real + np.float32(1e-6)}
    assert apart(near, both).unit == "absolute"
    assert apart({"y": eight, "z": eight + 1}, {"y": eight, "z": eight}).share == 1


def test_revealed_computes_the_same(files: tuple[Path, Path], tmp_path: Path) -> None:
    source = read_model(files[1])
    path = tmp_path / "revealed.tflite"
    path.write_bytes(revealed(files[1].read_bytes()))
    shown = parse_model(path.read_bytes())
    assert [name for name, _ in shown.signature_outputs] == [
        f"t{op.outputs[0]}" for op in source.operators
    ]
    assert [op.code for op in shown.operators] == [op.code for op in source.operators]
    feed = feeds_of(files[1])[0]
    wanted = open_model(files[1], kernels="reference").run(feed)
    found = open_model(path, kernels="reference").run(feed)
    for name, index in source.signature_outputs:
        assert (found[f"t{index}"] == wanted[name]).all()
