"""Every format, island and boundary type of a quantised file, by its tensors and by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse.errors import StageError
from edgefuse.metrics import sqnr_db
from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import Range, choose
from edgefuse.quant.writing.formats import Format
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.read import TfliteModel, read_model, signature_of
from edgefuse.tflite.runtime import Kernels, Runtime, open_model

FEEDS = [
    {"picture": value.astype(np.float32)}
    for value in np.random.default_rng(3).standard_normal((6, 1, 8, 8, 3))
]
HELD = weights()
# Operators of the file, by index.
STEM, DEEP, TWIN, LAST, ADD, MEAN, HEAD = range(7)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formats") / "float.tflite"
    path.write_bytes(float_file(HELD))
    return path


@pytest.fixture(scope="module")
def ranges(source: Path) -> dict[str, Range]:
    return choose(calibrate(source, FEEDS), "minmax", 0.0)


def _made(source: Path, ranges: dict[str, Range], folder: Path, **options: Any) -> Path:
    path = folder / "quantised.tflite"
    quantize_file(source, path, ranges, **options)
    return path


def _answers(
    path: Path, runtime: Runtime = "litert", kernels: Kernels = "default"
) -> np.ndarray[Any, Any]:
    model = open_model(path, runtime, kernels=kernels)
    return np.concatenate([model.run_float(feed)["logits"] for feed in FEEDS])


def _db(source: Path, made: Path, runtime: Runtime = "litert") -> float:
    exact = _answers(source)
    found = [_answers(made, runtime, k) for k in ("default", "builtin", "reference")]
    return min(sqnr_db(exact, f) for f in found)


def _dtypes(model: TfliteModel, operator: int) -> tuple[str, ...]:
    """Of an operator (conversions not counted): its data, weight, bias, result."""
    computing = [op for op in model.operators if op.code not in ("QUANTIZE", "DEQUANTIZE")]
    found = computing[operator]
    return tuple(model.tensors[i].dtype for i in (*found.inputs, *found.outputs))


def _boundary(path: Path) -> list[tuple[str, Any]]:
    signature = signature_of(read_model(path))
    return [(s.dtype, s.quantization) for s in (*signature.inputs, *signature.outputs)]


@pytest.mark.parametrize("runtime", ["litert", "tflite_runtime"])
@pytest.mark.parametrize(
    ("options", "expected", "limit_db"),
    [
        ({}, ("int8", "int8", "int32", "int8"), 30.0),
        ({"per_tensor_weights": True}, ("int8", "int8", "int32", "int8"), 27.0),
        (
            {"format": "int16x8", "input_type": "int16", "output_type": "int16"},
            ("int16", "int8", "int64", "int16"),
            38.0,
        ),
        (
            {"format": "dynamic_range", "input_type": "float32", "output_type": "float32"},
            ("float32", "int8", "float32", "float32"),
            30.0,
        ),
        (
            {"format": "float16", "input_type": "float32", "output_type": "float32"},
            ("float32", "float32", "float32", "float32"),
            60.0,
        ),
    ],
)
def test_each_format_has_its_types_and_answers_as_float(
    options: dict[str, Any],
    expected: tuple[str, ...],
    limit_db: float,
    runtime: Runtime,
    source: Path,
    ranges: dict[str, Range],
    tmp_path: Path,
) -> None:
    made = _made(source, ranges, tmp_path, **options)
    model = read_model(made)
    assert all(_dtypes(model, place) == expected for place in (STEM, DEEP, TWIN, HEAD))
    assert _db(source, made, runtime) > limit_db


def test_float16_holds_half_the_bytes(
    source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    boundary = {"input_type": "float32", "output_type": "float32"}
    model = read_model(_made(source, ranges, tmp_path, format="float16", **boundary))
    stored = [t.dtype for t in model.tensors if t.is_constant and t.dtype.startswith("float")]
    assert stored.count("float16") >= 5


@pytest.mark.parametrize("runtime", ["litert", "tflite_runtime"])
@pytest.mark.parametrize(
    ("input_type", "output_type"),
    [("uint8", "uint8"), ("float32", "int8"), ("int8", "float32"), ("uint8", "float32")],
)
def test_case_29_the_tensors_parameters_decide_at_the_boundary(
    input_type: str,
    output_type: str,
    runtime: Runtime,
    source: Path,
    ranges: dict[str, Range],
    tmp_path: Path,
) -> None:
    plain = _made(source, ranges, tmp_path)
    expected, held = _answers(plain, runtime, "reference"), _boundary(plain)
    made = tmp_path / "boundary.tflite"
    quantize_file(source, made, ranges, input_type=input_type, output_type=output_type)  # type: ignore[arg-type]
    for (dtype, found), wanted, (_, int8) in zip(_boundary(made), (input_type, output_type), held):
        assert dtype == wanted
        if wanted == "float32":
            assert found is None
        else:
            shift = 128 if wanted == "uint8" else 0
            assert (found.scale, found.zero_point) == (int8.scale, int8.zero_point + shift)
    # The same integers inside: the same answers to the last bit, without float operators.
    assert np.array_equal(_answers(made, runtime, "reference"), expected)
    assert not read_model(made).float_operators()


def test_float_islands_are_the_named_operators_and_neighbours_share_one(
    source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    from edgefuse.tflite.inspect import float_islands

    made = _made(source, ranges, tmp_path, keep_float={TWIN, LAST, HEAD})
    islands = float_islands(read_model(made))
    assert [[op.code for op in island.computing] for island in islands] == [
        ["CONV_2D", "CONV_2D"],
        ["FULLY_CONNECTED"],
    ]
    assert [len(island.operators) for island in islands] == [4, 3]
    assert _dtypes(read_model(made), TWIN) == ("float32",) * 4
    for runtime in ("litert", "tflite_runtime"):
        assert _db(source, made, runtime) > 30.0


@pytest.mark.parametrize("per_tensor", [False, True])
def test_weights_are_rounded_by_the_scales_that_are_given(
    per_tensor: bool, source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    scales = {
        "stem": np.linspace(0.011, 0.017, 8, dtype=np.float32),
        "deep": np.linspace(0.009, 0.02, 8, dtype=np.float32),
        "head": np.linspace(0.01, 0.013, 5, dtype=np.float32),
    }
    if per_tensor:
        scales = {name: value[:1] for name, value in scales.items()}
    made = _made(source, ranges, tmp_path, weight_scales=scales, per_tensor_weights=per_tensor)
    model = read_model(made)
    floats = {"stem": HELD.stem, "deep": HELD.depthwise, "head": HELD.head}
    for name, scale in scales.items():
        tensor = next(t for t in model.tensors if t.name == name)
        assert tensor.scales == tuple(scale.tolist())
        shape = (1, 1, 1, -1) if name == "deep" else (-1, *[1] * (floats[name].ndim - 1))
        steps = floats[name].astype(np.float64) / scale.astype(np.float64).reshape(shape)
        assert np.array_equal(model.constant(tensor), np.clip(np.rint(steps), -127, 127))
    assert _db(source, made) > 15.0


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"nobody": np.ones(8)}, "'nobody', which is no weight"),
        ({"stem": np.ones(3)}, "3 scales for weight 'stem' .* expected 8"),
        ({"stem": np.zeros(8)}, "all above 0"),
        ({"stem": np.full(8, 1e-12)}, "bias of channel 0 of .* beyond int32"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    scales: dict[str, Any],
    message: str,
    source: Path,
    ranges: dict[str, Range],
    tmp_path: Path,
) -> None:
    if "int32" in message:
        b = Builder()
        b_source = tmp_path / "biased.tflite"
        x, y = b.tensor("x", (1, 2, 2, 1)), b.tensor("y", (1, 2, 2, 8))
        weight = b.tensor("stem", value=np.ones((8, 1, 1, 1), np.float32))
        b.op("CONV_2D", (x, weight, b.tensor("bias", value=np.ones(8, np.float32))), (y,))
        b_source.write_bytes(b.finish({"x": x}, {"y": y}))
        source, ranges = b_source, {"x": Range(-1, 1, 0), "y": Range(-2, 2, 0)}
    with pytest.raises(StageError, match=message):
        _made(source, ranges, tmp_path, weight_scales=scales)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "int16x8"}, "input type int8 does not exist in format int16x8"),
        ({"output_type": "int16"}, "output type int16 does not exist in format int8"),
    ],
)
def test_a_boundary_that_the_format_does_not_have(
    options: dict[str, Any],
    message: str,
    source: Path,
    ranges: dict[str, Range],
    tmp_path: Path,
) -> None:
    with pytest.raises(StageError, match=message):
        _made(source, ranges, tmp_path, **options)


def test_a_range_that_is_missing_is_named(
    source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    fewer = {name: span for name, span in ranges.items() if name != "map2"}
    with pytest.raises(StageError, match="the quantiser refuses the model") as caught:
        _made(source, fewer, tmp_path)
    assert "CONV_2D" in caught.value.message


def test_tensors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    b = Builder()
    x, y, z = b.tensor("x", (1, 4)), b.tensor("same", (1, 4)), b.tensor("same", (1, 4))
    b.op("ADD", (x, b.tensor("same", value=np.ones(4, np.float32))), (y,))
    b.op("ADD", (y, b.tensor("same", value=np.ones(4, np.float32))), (z,))
    source = tmp_path / "twice.tflite"
    source.write_bytes(b.finish({"x": x}, {"z": z}))
    span = {"x": Range(-1, 1, 0), "same": Range(-3, 3, 0)}
    made = _made(source, span, tmp_path, keep_float={1})
    model = read_model(made)
    assert [op.code for op in model.operators if "QUANT" not in op.code] == ["ADD", "ADD"]
    assert [t.name for t in model.tensors[:5]] == ["x", "same", "same", "same", "same"]
    found = open_model(made).run_float({"x": np.zeros((1, 4), np.float32)})["z"]
    assert np.abs(found - 2).max() < 0.05


def _biased(folder: Path, weight: float) -> tuple[Path, dict[str, Range]]:
    """A 1x1 convolution of 4 channels; channel 2 has tiny weights and a bias of 5."""
    b = Builder()
    x, y = b.tensor("x", (1, 2, 2, 3)), b.tensor("y", (1, 2, 2, 4))
    held = np.random.default_rng(0).uniform(0.5, 1, (4, 1, 1, 3)).astype(np.float32)
    held[2] = weight
    bias = np.array([0.1, 0.2, 5.0, 0.3], np.float32)
    b.op("CONV_2D", (x, b.tensor("w", value=held), b.tensor("bias", value=bias)), (y,))
    path = folder / "biased.tflite"
    path.write_bytes(b.finish({"x": x}, {"y": y}))
    # An input step of one half.
    return path, {"x": Range(0.0, 127.5, 0.0), "y": Range(0.0, 400.0, 0.0)}


@pytest.mark.parametrize("format", ["int8", "int16x8"])
@pytest.mark.parametrize("weight", [1e-7, 1e-30, 0.0])
def test_case_27_a_tiny_channels_scale_has_room_for_its_bias(
    weight: float, format: Format, tmp_path: Path
) -> None:
    source, ranges = _biased(tmp_path, weight)
    boundary = {"int8": "int8", "int16x8": "int16"}[format]
    ends = {"input_type": boundary, "output_type": boundary}
    made = _made(source, ranges, tmp_path, format=format, **ends)
    model = read_model(made)
    bias = next(t for t in model.tensors if t.name == "bias")
    assert np.abs(model.constant(bias)).max() < 2**31 - 1
    feed = {"x": np.random.default_rng(1).uniform(0, 127, (1, 2, 2, 3)).astype(np.float32)}
    exact, found = (open_model(path).run_float(feed)["y"] for path in (source, made))
    step = model.tensors[model.outputs[0]].scales[0]
    assert np.abs(found[..., 2] - 5).max() <= step
    assert sqnr_db(exact, found) > 35.0


@pytest.mark.parametrize("dead", [-1.5429688e6, -1e8])
def test_a_bias_that_float32_does_not_hold_in_steps(dead: float, tmp_path: Path) -> None:
    """Below a ReLU for good: the other channels must not notice."""
    b = Builder()
    x, y = b.tensor("x", (1, 2, 2, 3)), b.tensor("y", (1, 2, 2, 4))
    weight = np.random.default_rng(0).uniform(0.5, 1, (4, 1, 1, 3)).astype(np.float32)
    bias = np.array([0.1, 0.2, dead, 0.3], np.float32)
    b.op("CONV_2D", (x, b.tensor("w", value=weight), b.tensor("bias", value=bias)), (y,), "RELU")
    source = tmp_path / "dead.tflite"
    source.write_bytes(b.finish({"x": x}, {"y": y}))
    made = _made(source, {"x": Range(-4.0, 3.75, 0.0), "y": Range(0.0, 12.0, 0.0)}, tmp_path)
    feed = {"x": np.random.default_rng(1).uniform(-4, 3.7, (1, 2, 2, 3)).astype(np.float32)}
    exact, found = (open_model(path).run_float(feed)["y"] for path in (source, made))
    assert (found[..., 2] == 0).all()
    assert sqnr_db(exact, found) > 35.0


def test_case_27_one_scale_in_all_cannot_help_and_the_channel_is_named(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 2, 2, 1)), b.tensor("y", (1, 2, 2, 2))
    weight = b.tensor("w", value=np.full((2, 1, 1, 1), 1e-7, np.float32))
    bias = b.tensor("bias", value=np.array([0.0, 5.0], np.float32))
    b.op("CONV_2D", (x, weight, bias), (y,))
    source = tmp_path / "small.tflite"
    source.write_bytes(b.finish({"x": x}, {"y": y}))
    ranges = {"x": Range(0.0, 127.5, 0.0), "y": Range(0.0, 6.0, 0.0)}
    with pytest.raises(StageError, match=r"bias of channel 1 of CONV_2D#0 is .*beyond int32"):
        _made(source, ranges, tmp_path, per_tensor_weights=True)
    _made(source, ranges, tmp_path)


def test_case_28_symmetric_activations_keep_their_relu(
    source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    ends = {"input_type": "int16", "output_type": "int16"}
    model = read_model(_made(source, ranges, tmp_path, format="int16x8", **ends))
    kept = [op.activation for op in model.operators]
    assert kept == [op.activation for op in read_model(source).operators]
    assert {"RELU", "RELU6"} <= set(kept)


def test_case_30_sets_of_kernels_agree_within_steps(
    source: Path, ranges: dict[str, Range], tmp_path: Path
) -> None:
    made = _made(source, ranges, tmp_path)
    sets: tuple[Kernels, ...] = ("default", "builtin", "reference")
    models = {name: open_model(made, kernels=name) for name in sets}
    for feed in FEEDS:
        rows = {name: model.run(feed)["logits"].astype(int) for name, model in models.items()}
        for name in sets[:2]:
            assert np.abs(rows[name] - rows["reference"]).max() <= 2, name
    assert {model.kernels for model in models.values()} == set(sets)
    assert {model.runtime for model in models.values()} == {"litert"}
