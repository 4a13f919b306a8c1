"""Blame on real files: the figures add up, and a planted fault is named, with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tflite.tiny import Builder, float_file, weights

from edgefuse import metrics
from edgefuse.errors import DataError, StageError
from edgefuse.quant.blame.blame import Blame, Blamed, blame
from edgefuse.quant.blame.deviation import Seen
from edgefuse.tflite.mixed import Mixer
from edgefuse.tflite.read import read_model
from edgefuse.tflite.runtime import open_model
from quant.blame.planted import Fault, far_apart, feeds, inverted_residuals, quantised

Files = tuple[Path, Path]
SAMPLES = 8


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Seven operators at 8x8."""
    folder = tmp_path_factory.mktemp("small")
    return quantised(folder, float_file(weights()), feeds(8, 24))


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Inverted residuals at 96x96: 17 operators."""
    folder = tmp_path_factory.mktemp("residual")
    return quantised(folder, inverted_residuals(4), feeds(96, 6, seed=7))


def blamed(files: Files, folder: Path, size: int, count: int = SAMPLES) -> Blame:
    work = folder / "work"
    work.mkdir()
    found = blame(*files, feeds(size, count, seed=7), work)
    assert not list(work.glob("*.tflite"))
    return found


@pytest.fixture(scope="module")
def sound(small: Files, tmp_path_factory: pytest.TempPathFactory) -> Blame:
    return blamed(small, tmp_path_factory.mktemp("sound"), 8)


def by_operator(found: Blame) -> dict[str, Blamed]:
    return {row.operator: row for row in found.rows}


def test_every_layer_and_the_input(small: Files, sound: Blame) -> None:
    operators = read_model(small[1]).operators
    assert set(by_operator(sound)) == {"INPUT", *(op.label for op in operators)}
    assert (sound.samples, sound.classifier) == (SAMPLES, True)
    assert (sound.moves, sound.left_float, sound.strangers) == ((), (), ())
    assert not any(row.suspicions or row.not_measured for row in sound.rows)
    shares = [row.noise_share_percent for row in sound.rows]
    assert shares == sorted(shares, reverse=True)
    # Each error has one owner: on a sound file the shares come to the whole, roughly.
    assert 50 < sum(shares) < 200
    json.dumps([row.to_json() for row in sound.rows], allow_nan=False)


def test_tensors_are_compared_as_by_hand(small: Files, sound: Blame) -> None:
    """Accumulated: both files' tensors. Alone: the first layer on the int8 file's own input."""
    pair = [open_model(p, kernels="builtin", preserve_all_tensors=True) for p in small]
    first = pair[1].source.operators[0]
    output, given = (pair[1].source.tensors[i] for i in (first.outputs[0], first.inputs[0]))
    exact, own, held = [], [], []
    for feed in feeds(8, SAMPLES, seed=7):
        for model in pair:
            model.run(feed)
        step, zero = output.scales[0], output.zero_points[0]
        held.append((pair[1].value(output.index).astype(float) - zero) * step)
        exact.append(pair[0].value(pair[0].source.operators[0].outputs[0]))
        read = (pair[1].value(given.index).astype(float) - given.zero_points[0]) * given.scales[0]
        pair[0].run({"picture": read.astype(np.float32)})
        own.append(pair[0].value(pair[0].source.operators[0].outputs[0]))
    row = by_operator(sound)[first.label]
    wanted = metrics.sqnr_db(np.stack(exact), np.stack(held))
    assert row.accumulated["sqnr_db"] == pytest.approx(wanted, abs=1e-6)
    wanted = metrics.cosine(np.stack(exact), np.stack(held))
    assert row.accumulated["cosine"] == pytest.approx(wanted, abs=1e-9)
    wanted = metrics.sqnr_db(np.stack(own), np.stack(held))
    assert row.alone["sqnr_db"] == pytest.approx(wanted, abs=1e-3)
    assert row.range["maximum"] == pytest.approx(float(np.max(exact)))


def test_the_whole_file_is_judged_too(small: Files, sound: Blame) -> None:
    pair = [open_model(path) for path in small]
    rows = [[m.run_float(f)["logits"] for f in feeds(8, SAMPLES, seed=7)] for m in pair]
    exact, int8 = (np.concatenate(row) for row in rows)
    assert sound.full.sqnr_db == pytest.approx(metrics.sqnr_db(exact, int8), abs=1e-6)
    loss = 100 - metrics.agreement_percent(exact, int8)
    assert sound.full.agreement_loss_points == pytest.approx(loss)


def test_mixed_files_are_what_they_say(small: Files, tmp_path: Path) -> None:
    """All but one operator of one kind, and the values of the rest untouched."""
    float_model, int8_model = (read_model(path) for path in small)
    mixer = Mixer(float_model, int8_model)
    path = tmp_path / "mixed.tflite"
    feed = feeds(8, 1)[0]
    for place, pair in enumerate(mixer.layers):
        path.write_bytes(mixer.only_quantised(pair))
        mixed = read_model(path)
        counts = mixed.operator_counts()
        assert (counts.pop("QUANTIZE"), counts.pop("DEQUANTIZE")) == (1, 1)
        assert counts == float_model.operator_counts()
        both = [
            open_model(p, kernels="builtin", preserve_all_tensors=True) for p in (small[0], path)
        ]
        for model in both:
            model.run(feed)
        for other in mixer.layers[: place + 1]:
            values = [m.value(other.float_op.outputs[0]) for m in both]
            assert np.array_equal(*values) == (other is not pair)
        path.write_bytes(mixer.only_float(pair))
        mixed = read_model(path)
        assert mixed.inputs == int8_model.inputs
        touched = [
            op for op in mixed.float_operators() if op.code not in ("QUANTIZE", "DEQUANTIZE")
        ]
        readers = [o for o in int8_model.operators if pair.int8_op.outputs[0] in o.inputs]
        assert len(touched) == 1 + len(readers)
        open_model(path).run_float(feed)


def test_a_rounded_constant_is_what_the_int8_kernel_reads(small: Files, tmp_path: Path) -> None:
    """The alone error and the error of the file in which only the head is quantised agree."""
    found = blamed(small, tmp_path, 8)
    head = by_operator(found)["FULLY_CONNECTED#6"]
    assert head.only_quantized is not None and head.only_quantized.sqnr_db is not None
    assert head.only_quantized.sqnr_db == pytest.approx(head.alone["sqnr_db"], abs=3)


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED"])
@pytest.mark.parametrize("net", ["small", "residual"])
def test_a_saturated_range_is_named(
    net: str, code: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    float_path, _ = request.getfixturevalue(net)
    source = read_model(float_path)
    op = [o for o in source.operators if o.code == code][-1]
    size, count = (8, SAMPLES) if net == "small" else (96, 4)
    files = quantised(
        tmp_path,
        source.data,
        feeds(size, 8, seed=7),
        narrowed=source.tensors[op.outputs[0]].name,
    )
    _is_named(blamed(files, tmp_path, size, count), op.label, "% saturated")


def _is_named(found: Blame, operator: str, says: str) -> None:
    first = found.rows[0]
    assert first.operator == operator, [(r.operator, r.noise_share_percent) for r in found.rows]
    assert any(says in text for text in first.suspicions), first.suspicions
    assert first.noise_share_percent > 2 * found.rows[1].noise_share_percent
    others = [row.operator for row in found.rows[1:] if row.suspicions]
    assert not others, [row.suspicions for row in found.rows]


def _swapped(fault: Fault) -> str:
    op = fault.operator("CONV_2D", 1)
    fault.swap_scales(op, *far_apart(fault.model, op))
    return op.label


def _swapped_depthwise(fault: Fault) -> str:
    op = fault.operator("DEPTHWISE_CONV_2D", 0)
    fault.swap_scales(op, *far_apart(fault.model, op))
    return op.label


def _overflowed(fault: Fault) -> str:
    op = fault.operator("CONV_2D", 2)
    fault.overflow_bias(op, 5)
    return op.label


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (_swapped, "weight scale does not fit its weights"),
        (_swapped_depthwise, "weight scale does not fit its weights"),
        (_overflowed, "bias of channel 5 is at the limit of int32"),
    ],
)
@pytest.mark.parametrize("net", ["small", "residual"])
def test_a_planted_fault_is_named(
    net: str,
    plant: Callable[[Fault], str],
    says: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    files: Files = request.getfixturevalue(net)
    faulty = Path(shutil.copy(files[1], tmp_path / "faulty.tflite"))
    operator = plant(Fault(faulty))
    size, count = (8, SAMPLES) if net == "small" else (96, 4)
    found = blamed((files[0], faulty), tmp_path, size, count)
    _is_named(found, operator, says)


def test_the_channels_are_named(small: Files, tmp_path: Path) -> None:
    faulty = Path(shutil.copy(small[1], tmp_path / "faulty.tflite"))
    fault = Fault(faulty)
    op = fault.operator("CONV_2D", 1)
    low, high = sorted(far_apart(fault.model, op))
    fault.swap_scales(op, low, high)
    first = blamed((small[0], faulty), tmp_path, 8).rows[0]
    assert f"channel {low} by " in first.suspicions[0] and f", {high} by " in first.suspicions[0]
    assert first.weights is not None and first.weights["worst_channel"] in (low, high)
    assert first.suspicions[-1] == (
        f"bias scale of channel {low}, {high} is not input scale * weight scale"
    )


def test_a_bias_beyond_int32_says_what_it_needs(tmp_path: Path) -> None:
    """One channel's weights are nearly zero, and so its weight scale, while its bias is 1."""
    held = weights()
    files = quantised(tmp_path, float_file(held), feeds(8, 8))
    fault = Fault(files[1])
    op = fault.operator("CONV_2D", 0)
    scales = fault._tensor(op.inputs[1]).quantization
    scales.scale = [1e-13 if c == 2 else float(s) for c, s in enumerate(scales.scale)]
    bias = fault.model.tensors[op.inputs[2]]
    b, model = 0.7, read_model(files[0])
    data = bytearray(files[0].read_bytes())
    begin, _ = model.spans[model.tensors[model.operators[0].inputs[2]].buffer]
    data[begin + 8 : begin + 12] = np.float32(b).tobytes()
    files[0].write_bytes(bytes(data))
    fault.overflow_bias(op, 2)
    assert bias.dtype == "int32"
    row = by_operator(blamed(files, tmp_path, 8))[op.label]
    needed = b / (1e-13 * model_input_scale(files[1]))
    text = f"bias of channel 2 does not fit int32: channel 2 needs {needed:.3g} steps"
    assert any(said.startswith(text) for said in row.suspicions), row.suspicions


def model_input_scale(path: Path) -> float:
    model = read_model(path)
    return model.tensors[model.inputs[0]].scales[0]


def test_clipped_logits_are_no_fault(small: Files, tmp_path: Path) -> None:
    faulty = Path(shutil.copy(small[1], tmp_path / "faulty.tflite"))
    fault = Fault(faulty)
    op = fault.operator("FULLY_CONNECTED", 0)
    held = fault._tensor(op.outputs[0]).quantization
    held.zeroPoint = [-128]  # nothing below zero
    fault._save()
    rows = []
    for folder, clipped in ((tmp_path / "a", False), (tmp_path / "b", True)):
        folder.mkdir()
        found = blame(small[0], faulty, feeds(8, SAMPLES, seed=7), folder, clipped_low=clipped)
        rows.append(by_operator(found)[op.label])
    assert "saturated" in rows[0].suspicions[0] and not rows[1].suspicions
    noise = [row.only_quantized.noise_ratio for row in rows if row.only_quantized]
    assert noise[1] < noise[0] / 10


def test_equal_runs_are_equal(small: Files, sound: Blame, tmp_path: Path) -> None:
    assert blamed(small, tmp_path, 8) == sound


def test_files_of_two_models_are_refused(small: Files, residual: Files, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"do not come from the same model|have no twin"):
        blame(small[0], residual[1], feeds(8, 1), tmp_path)
    with pytest.raises(StageError, match="no operator of the file is quantised"):
        blame(small[0], small[0], feeds(8, 1), tmp_path)


def test_no_samples_and_a_float_file_that_answers_nan(small: Files, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no samples"):
        blame(*small, [], tmp_path)
    model = read_model(small[0])
    data = bytearray(model.data)
    begin, _ = model.spans[model.tensors[model.operators[-1].inputs[2]].buffer]
    data[begin : begin + 4] = np.float32(np.nan).tobytes()
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(bytes(data))
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(StageError, match="output 'logits' holds NaN"):
        blame(broken, small[1], feeds(8, 2), folder)


def test_an_infinite_value_inside_is_refused(small: Files) -> None:
    tensor = next(t for t in read_model(small[1]).tensors if t.real_range)
    value, held = np.full(4, np.inf, np.float32), np.zeros(4, np.int8)
    with pytest.raises(DataError, match="NaN or infinity"):
        Seen().add(0, value, held, tensor, value)


def test_moves_hand_on_what_is_free(tmp_path: Path) -> None:
    """conv, RESHAPE, dense: freeing the convolution frees what the RESHAPE hands on."""
    b, random = Builder(), np.random.default_rng(0)
    image, map_ = b.tensor("picture", (1, 4, 4, 3)), b.tensor("map", (1, 4, 4, 2))
    flat, out = b.tensor("flat", (1, 32)), b.tensor("out", (1, 5))

    def constant(name: str, *shape: int) -> int:
        return b.tensor(name, value=random.normal(size=shape).astype(np.float32))

    b.op("CONV_2D", (image, constant("w", 2, 1, 1, 3), constant("b", 2)), (map_,), "RELU")
    b.op("RESHAPE", (map_, b.tensor("shape", value=np.array([1, 32], np.int32))), (flat,))
    b.op("FULLY_CONNECTED", (flat, constant("v", 5, 32), constant("c", 5)), (out,))
    files = quantised(tmp_path, b.finish({"picture": image}, {"logits": out}), feeds(4, 8))
    found = blamed(files, tmp_path, 4)
    assert found.moves == ("RESHAPE#1",)
    assert set(by_operator(found)) == {"INPUT", "CONV_2D#0", "FULLY_CONNECTED#2"}
    float_model, int8_model = (read_model(path) for path in files)
    mixer = Mixer(float_model, int8_model)
    path = tmp_path / "mixed.tflite"
    path.write_bytes(mixer.only_float(mixer.layers[0]))
    codes = [op.code for op in read_model(path).operators]
    assert codes == ["DEQUANTIZE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", "QUANTIZE"]
    path.write_bytes(mixer.only_float(mixer.layers[1]))
    assert open_model(path).signature.outputs[0].dtype == "float32"


def test_padding_for_a_maximum_is_no_layer(tmp_path: Path) -> None:
    """Its constant, as good as minus infinity, is no value that a range could hold."""
    b, random = Builder(), np.random.default_rng(0)
    image, map_ = b.tensor("picture", (1, 4, 4, 3)), b.tensor("map", (1, 4, 4, 2))
    padded, out = b.tensor("padded", (1, 6, 6, 2)), b.tensor("out", (1, 5, 5, 2))
    weight = b.tensor("w", value=random.normal(size=(2, 1, 1, 3)).astype(np.float32))
    bias = b.tensor("b", value=np.ones(2, np.float32))
    b.op("CONV_2D", (image, weight, bias), (map_,), "RELU")
    pads = b.tensor("pads", value=np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    low = b.tensor("low", value=np.full(1, np.finfo(np.float32).min))
    b.graph.tensors[low].shape = []
    b.op("PADV2", (map_, pads, low), (padded,))
    b.op("MAX_POOL_2D", (padded,), (out,))
    options = b.schema.Pool2DOptionsT()
    options.filterWidth = options.filterHeight = 2
    options.strideW = options.strideH = 1
    options.padding = b.schema.Padding.VALID
    pool = b.graph.operators[-1]
    pool.builtinOptionsType, pool.builtinOptions = b.schema.BuiltinOptions.Pool2DOptions, options
    files = quantised(tmp_path, b.finish({"picture": image}, {"map": out}), feeds(4, 8))
    found = blamed(files, tmp_path, 4)
    assert set(found.moves) == {"PADV2#1", "MAX_POOL_2D#2"}
    assert set(by_operator(found)) == {"INPUT", "CONV_2D#0"}
    assert not any(row.suspicions or row.not_measured for row in found.rows)
