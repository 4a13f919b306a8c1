"""Instructions into milliseconds: what is written, read again, told, and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tflite.tiny import float_file, int8_file, weights

from edgefuse.archive import pack
from edgefuse.commands.calibrate import calibrate
from edgefuse.devices import device
from edgefuse.devices.device import Cost
from edgefuse.errors import RecipeError, UsageError
from edgefuse.stages.gate_latency import _estimate
from edgefuse.target import load_target

TARGETS = Path(__file__).parents[2] / "targets"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its own copies of targets, two bundles, and devices that answer at once."""
    (tmp_path / "targets").mkdir()
    for name in ("emu-cortex-a53", "host"):
        shutil.copy(TARGETS / f"{name}.yaml", tmp_path / "targets")
    model = tmp_path / "float.tflite"
    model.write_bytes(float_file(weights()))
    for number in range(2):
        data = int8_file(model) + bytes(number)
        pack({"models/m_full_integer_quant.tflite": data}, tmp_path / f"{number}.tar")
    monkeypatch.chdir(tmp_path)

    class Answering:
        def __init__(self, target: Any) -> None:
            self.target = target

        def describe(self) -> str:
            return f"runtime on {self.target.name}"

        def cost(self, models: Any, feeds: Any, **_: Any) -> Cost:
            if self.target.emulator is not None:
                return Cost("instructions", "emulated-count", (((2e6,),), ((4e6,),)))
            return Cost("ms", "measured", (((1.0, 1.0),), ((2.2, 2.2),)))

    monkeypatch.setattr(device, "open_device", lambda target, *_: Answering(target))
    return tmp_path


BUNDLES = [Path("0.tar"), Path("1.tar")]


def test_the_calibration_is_written_and_read_with_the_target(folder: Path) -> None:
    assert load_target("emu-cortex-a53").calibration is None
    found, path = calibrate("emu-cortex-a53", "host", BUNDLES, lambda _: None)
    assert path.samefile(folder / "targets/emu-cortex-a53.calibration.json")
    assert found.ms_per_million_instructions == pytest.approx(0.525)
    assert found.spread_percent == pytest.approx(100 * (0.55 / 0.525 - 1), abs=0.01)
    assert [row.instructions for row in found.models] == [2_000_000, 4_000_000]
    read = load_target("emu-cortex-a53").calibration
    assert read == found
    estimate = _estimate(10e6, read)
    assert estimate["p50_ms"] == pytest.approx(5.25) and estimate["provenance"] == "estimated"
    before = path.read_bytes()
    calibrate("emu-cortex-a53", "host", BUNDLES, lambda _: None)
    assert path.read_bytes() == before


def test_only_a_real_board_calibrates_an_emulated_target(folder: Path) -> None:
    with pytest.raises(UsageError, match="not emulated"):
        calibrate("host", "host", BUNDLES, lambda _: None)
    with pytest.raises(UsageError, match="no real board"):
        calibrate("emu-cortex-a53", "emu-cortex-a53", BUNDLES, lambda _: None)
    with pytest.raises(UsageError, match="no bundle"):
        calibrate("emu-cortex-a53", "host", [], lambda _: None)
    with pytest.raises(UsageError, match="no such bundle"):
        calibrate("emu-cortex-a53", "host", [Path("missing.tar")], lambda _: None)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not a calibration"), ('{"board": "b"}', "not a calibration")],
)
def test_a_damaged_calibration_is_refused(folder: Path, text: str, said: str) -> None:
    (folder / "targets/emu-cortex-a53.calibration.json").write_text(text)
    with pytest.raises(RecipeError, match=said):
        load_target("emu-cortex-a53")


def test_a_calibration_beside_another_target_is_refused(folder: Path) -> None:
    _, path = calibrate("emu-cortex-a53", "host", BUNDLES, lambda _: None)
    other = folder / "targets/host.calibration.json"
    other.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(RecipeError, match="not a calibration"):
        load_target("host")
