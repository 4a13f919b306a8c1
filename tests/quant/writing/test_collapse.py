"""Operators that the quantiser leaves float: each integer kernel by value, and what stays."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder

from edgefuse.errors import StageError
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.writing.collapse import KERNELS
from edgefuse.quant.writing.formats import Format
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.read import TfliteModel, read_model
from edgefuse.tflite.runtime import Kernels, Model, dequantize, open_model, quantize
from quant.one_operator import CASES, Array, feeds_of, file_of

# In steps of the output, beyond the half step that any result is rounded by; the fixed scales of
# two operators are converted to the range's once more.
_STEPS = {"EXP": 1.2, "L2_NORMALIZATION": 1.2, "LEAKY_RELU": 1.2, "ELU": 1.2, "PRELU": 1.2}
_FORMATS: dict[str, Format] = {"int8": "int8", "int16": "int16x8"}
_WITHOUT_REFERENCE = {"ELU"}


def _quantised(
    folder: Path,
    data: bytes,
    feeds: list[dict[str, Array]],
    format: Format = "int8",
    keep_float: Collection[int] = (),
) -> tuple[Path, Path]:
    source, made = folder / "float.tflite", folder / "quantised.tflite"
    source.write_bytes(data)
    ranges = choose(calibrate(source, feeds, threads=1), "minmax", 0.0)
    boundary = "int8" if format == "int8" else "int16"
    quantize_file(
        source,
        made,
        ranges,
        format=format,
        keep_float=keep_float,
        input_type=boundary,
        output_type=boundary,
    )
    return source, made


def _rounded(model: Model, feed: dict[str, Array]) -> dict[str, Array]:
    """The inputs as the quantised model sees them."""
    return {s.name: dequantize(quantize(feed[s.name], s), s) for s in model.signature.inputs}


@pytest.mark.parametrize(
    ("code", "format"),
    [(code, _FORMATS[dtype]) for code, kernel in KERNELS.items() for dtype in kernel.dtypes],
)
def test_each_integer_kernel_answers_as_the_float_one(
    code: str, format: Format, tmp_path: Path
) -> None:
    feeds = feeds_of(CASES[code], 3)
    source, made = _quantised(tmp_path, file_of(code), feeds, format)
    assert not read_model(made).float_operators()
    exact = open_model(source, kernels="builtin")
    sets: tuple[Kernels, ...] = ("default", "builtin", "reference")
    for kernels in sets[: 2 if code in _WITHOUT_REFERENCE else 3]:
        model = open_model(made, kernels=kernels)
        for feed in feeds:
            expected = exact.run(_rounded(model, feed))
            found = model.run_float(feed)
            for spec in model.signature.outputs:
                wanted, got = expected[spec.name].astype(float), found[spec.name].astype(float)
                step = spec.quantization.scale if spec.quantization else 1.0
                limit = 0.5 + _STEPS.get(code, 0.6) if spec.quantization else 0.0
                assert np.abs(wanted - got).max() <= limit * step, (kernels, spec.name)


def test_the_table_and_the_cases_are_the_same() -> None:
    assert list(CASES) == list(KERNELS)


def _island(b: Builder) -> bytes:
    """x -> ADD -> LEAKY_RELU -> SIN -> ABS -> y, and LEAKY_RELU's result is an output too."""
    x, c = b.tensor("x", (1, 4, 4, 8)), b.tensor("c", value=np.ones(8, np.float32))
    names = ("sum", "leaky", "sine", "y")
    held = [b.tensor(name, (1, 4, 4, 8)) for name in names]
    b.op("ADD", (x, c), (held[0],))
    b.op("LEAKY_RELU", (held[0],), (held[1],), options=("LeakyReluOptions", {"alpha": 0.1}))
    b.op("SIN", (held[1],), (held[2],))
    b.op("ABS", (held[2],), (held[3],))
    return b.finish({"x": x}, {"leaky": held[1], "y": held[3]})


def _feeds() -> list[dict[str, Array]]:
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=(1, 4, 4, 8)).astype(np.float32)} for _ in range(3)]


def _floats(model: TfliteModel) -> list[str]:
    return [op.code for op in model.float_operators() if "QUANTIZE" not in op.code]


def test_what_has_no_kernel_and_what_lies_behind_it_stays_float(tmp_path: Path) -> None:
    source, made = _quantised(tmp_path, _island(Builder()), _feeds())
    model = read_model(made)
    assert _floats(model) == ["SIN", "ABS"]
    exact, found = (open_model(p).run_float(_feeds()[0]) for p in (source, made))
    for name in ("leaky", "y"):
        assert np.abs(exact[name] - found[name]).max() < 0.05


def test_what_is_kept_float_stays_float(tmp_path: Path) -> None:
    _, made = _quantised(tmp_path, _island(Builder()), _feeds(), keep_float={1})
    assert _floats(read_model(made)) == ["LEAKY_RELU", "SIN", "ABS"]


def test_an_operator_that_does_not_exist_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no operator 9: the file has 4"):
        _quantised(tmp_path, _island(Builder()), _feeds(), keep_float={9})


def test_a_chain_of_moves_needs_no_conversion_and_frees_its_constants(tmp_path: Path) -> None:
    b = Builder()
    x, alpha = b.tensor("x", (1, 4, 6, 8)), np.full((1, 1, 8), 0.25, np.float32)
    a, c, y = (
        b.tensor("a", (1, 4, 6, 8)),
        b.tensor("b", (1, 8, 12, 2)),
        b.tensor("y", (1, 16, 24, 2)),
    )
    b.op("PRELU", (x, b.tensor("alpha", value=alpha)), (a,))
    b.op("DEPTH_TO_SPACE", (a,), (c,), options=("DepthToSpaceOptions", {"blockSize": 2}))
    size = b.tensor("size", value=np.array([16, 24], np.int32))
    b.op("RESIZE_NEAREST_NEIGHBOR", (c, size), (y,), options=("ResizeNearestNeighborOptions", {}))
    feeds = [{"x": f["x0"]} for f in feeds_of(CASES["ABS"], 3)]
    _, made = _quantised(tmp_path, b.finish({"x": x}, {"y": y}), feeds)
    model = read_model(made)
    codes = ["PRELU", "DEPTH_TO_SPACE", "RESIZE_NEAREST_NEIGHBOR"]
    assert [op.code for op in model.operators] == codes
    assert not any(t.is_float and t.is_constant for t in model.tensors)
    assert [model.tensors[i].name for op in model.operators for i in op.outputs] == ["a", "b", "y"]
