from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgefuse.devices.measure.arena import lower_bound_bytes, measure_arena, span_bytes
from edgefuse.errors import SourceError, ToolError
from edgefuse.tflite.read import TfliteModel, parse_model, read_model


@pytest.mark.parametrize("runtime", ["litert", "tflite_runtime"])
def test_measured_against_the_bound(files: tuple[Path, Path], tmp_path: Path, runtime: str) -> None:
    if runtime == "tflite_runtime":
        pytest.importorskip("tflite_runtime")
    sizes = []
    for path in files:
        found = measure_arena(path, log=tmp_path / "log", runtime=runtime)
        assert found.lower_bound_bytes <= found.measured_bytes
        assert found.measured_bytes <= 4 * found.lower_bound_bytes
        assert measure_arena(path, log=tmp_path / "log", runtime=runtime).measured_bytes == (
            found.measured_bytes
        )
        sizes.append(found.measured_bytes)
    assert sizes[1] * 2 < sizes[0]


def chain(*codes: str, size: int = 100) -> TfliteModel:
    """A chain of [1, size] float tensors; ADD adds the first tensor to the last one."""
    b = sys.modules["tiny_for_devices"].Builder()
    held = [b.tensor("t0", (1, size))]
    for k, code in enumerate(codes):
        held.append(b.tensor(f"t{k + 1}", (1, size)))
        b.op(code, (held[-2], held[0]) if code == "ADD" else (held[-2],), (held[-1],))
    return parse_model(b.finish({"x": held[0]}, {"y": held[-1]}))


@pytest.mark.parametrize(
    ("codes", "tensors"),
    [
        (["ABS"], 2),
        # The input is preserved to the end: three are alive at the second operator.
        (["ABS", "ABS"], 3),
        (["ABS", "ABS", "ABS"], 3),
        (["ABS", "ADD"], 2),
        (["RESHAPE"], 1),
        (["ABS", "RESHAPE", "ABS"], 3),
    ],
)
def test_lower_bound_by_hand(files: tuple[Path, Path], codes: list[str], tensors: int) -> None:
    # 100 floats are 400 bytes, 448 in steps of 64.
    assert lower_bound_bytes(chain(*codes)) == tensors * 448


def test_bound_of_the_tiny_model(files: tuple[Path, Path]) -> None:
    """Float: the picture (768) is preserved; at ADD, map3 is overwritten in place."""
    assert lower_bound_bytes(read_model(files[0])) == 768 + 3 * 2048


def test_span() -> None:
    assert span_bytes({1: (1024, 100), 2: (1152, 64)}, []) == 192
    near, inside, far, odd = (1216, 256), (1088, 64), (9000 * 64, 64), (1216 + 16, 16)
    assert span_bytes({1: (1024, 100), 2: (1152, 64)}, [far, near, inside]) == 448
    assert span_bytes({1: (1024, 100), 2: (1152, 64)}, [far, odd]) == 192
    assert span_bytes({1: (1024, 64)}, [(1024 - 128, 128)]) == 192
    with pytest.raises(ToolError, match="no activation"):
        span_bytes({}, [])
    with pytest.raises(ToolError, match="one arena"):
        span_bytes({1: (1024, 100), 2: (1 << 30, 64)}, [])


def test_damaged_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "cut.tflite").write_bytes(files[0].read_bytes()[:400])
    with pytest.raises(SourceError):
        measure_arena(tmp_path / "cut.tflite", log=tmp_path / "log")
