"""The scales of a QDQ model on a float .tflite, and in the int8 file, without a converter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tflite.tiny import Builder

from edgefuse.artifact import Quantization
from edgefuse.errors import RecipeError, StageError
from edgefuse.graph.qdq import take_out
from edgefuse.graph.verify import run_onnx
from edgefuse.quant.calibration.ranges import Range
from edgefuse.quant.qdq.exact import described, write_exact
from edgefuse.quant.qdq.qdq import Carried, carried, refuse_options
from edgefuse.quant.qdq.qdq_weights import Integers, find_weights, require_all
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.recipe.quantize import Quantize
from edgefuse.tflite.read import parse_model, read_model
from edgefuse.tflite.runtime import open_model
from edgefuse.tflite.scales import with_scales

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(5)
KERNEL = RANDOM.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8)
SCALES = RANDOM.uniform(0.002, 0.02, 4).astype(np.float32)
BIAS = np.asarray([500, -300, 20, 0], np.int32)
# Scales whose last bit a quantiser loses that computes (high - low) / 255 in float32.
X = Quantization(float(np.nextafter(np.float32(0.031), np.float32(1))), -3)
Y = Quantization(float(np.nextafter(np.float32(0.0173), np.float32(0))), -128)
PAIR = "{1}q = QuantizeLinear({0}, {2}s, {2}z)\n {1} = DequantizeLinear({1}q, {2}s, {2}z)\n"


def qdq_model(tail: str = PAIR.format("c", "y", "y"), **arrays: Any) -> Any:
    """x -> Q -> DQ -> Conv with per-channel weights and int32 bias -> ``tail``."""
    body = (
        PAIR.format("x", "a", "x")
        + "w = DequantizeLinear<axis=0>(k, ks, kz)\n b = DequantizeLinear<axis=0>(bq, bs, bz)\n"
        + f"c = Conv(a, w, b)\n {tail}"
    )
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y)'
    proto = onnx.parser.parse_model(f"{head} {{ {body} }}")
    given = {
        "xs": np.float32(X.scale), "xz": np.int8(X.zero_point),
        "ys": np.float32(Y.scale), "yz": np.uint8(Y.zero_point + 128),
        "k": KERNEL, "ks": SCALES, "kz": np.zeros(4, np.int8),
        "bq": BIAS, "bs": SCALES * np.float32(X.scale), "bz": np.zeros(4, np.int32),
    }  # fmt: skip
    for name, array in {**given, **arrays}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def float_file(path: Path, factors: Array | None = None, activation: str = "RELU") -> Path:
    """The convolution as a float .tflite, each channel times a factor."""
    factor = np.ones(4, np.float32) if factors is None else factors
    weight = KERNEL.astype(np.float32) * (SCALES * factor).reshape(4, 1, 1, 1)
    b = Builder()
    x, y = b.tensor("input", (1, 8, 8, 3)), b.tensor("output", (1, 8, 8, 4))
    bias = (BIAS * (SCALES * np.float32(X.scale))).astype(np.float32)
    constants = (
        b.tensor("weight", value=np.ascontiguousarray(weight.transpose(0, 2, 3, 1))),
        b.tensor("bias", value=bias),
    )
    b.op("CONV_2D", (x, *constants), (y,), activation)
    path.write_bytes(b.finish({"x": x}, {"y": y}))
    return path


def exported(path: Path, proto: Any) -> Path:
    found = take_out(proto)
    assert found is not None
    onnx.save(found.proto, path)
    return path


def feed(seed: int = 0) -> dict[str, Array]:
    values = np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32)
    return {"x": values}


def located(folder: Path, proto: Any, **options: Any) -> Carried:
    source = exported(folder / "m.onnx", proto)
    found = carried(source, float_file(folder / "f.tflite", **options), {"x": "NCHW"}, feed())
    assert found is not None
    return found


def test_scales_and_integers_are_written_bit_for_bit(tmp_path: Path) -> None:
    proto = qdq_model()
    found = located(tmp_path, proto)
    assert not found.missing and not found.plain and not found.followed
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "f.tflite", out, found.ranges)
    inexact = read_model(out)
    evidence = write_exact(out, found)
    model = read_model(out)
    x, weight, bias = (model.tensors[i] for i in model.operators[0].inputs)
    y = model.tensors[model.operators[0].outputs[0]]
    assert (x.scales, x.zero_points) == ((X.scale,), (X.zero_point,))
    assert (y.scales, y.zero_points) == ((Y.scale,), (Y.zero_point,))
    assert weight.scales == tuple(SCALES.tolist())
    np.testing.assert_array_equal(model.constant(weight), KERNEL.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(model.constant(bias), BIAS)
    assert bias.scales == tuple((np.float64(X.scale) * SCALES).astype(np.float32).tolist())
    assert (evidence["activations"], evidence["weights"], evidence["biases"]) == (2, 1, 1)
    # The exact file is no accident: the quantiser alone does not come to it.
    assert any(a.scales != b.scales for a, b in zip(inexact.tensors, model.tensors))
    assert described(evidence) == ("2 activations and 1 weights as given", [])


def test_layers_that_share_their_constants_have_biases_of_their_own(tmp_path: Path) -> None:
    """The bias's scale follows the input's: one tensor becomes two."""
    b, integers = Builder(), RANDOM.integers(-127, 128, (8, 8)).astype(np.int8)
    scales = RANDOM.uniform(0.002, 0.01, 8).astype(np.float32)
    bias = RANDOM.normal(size=8).astype(np.float32)
    weight = integers * scales[:, None]
    x, a, y = (b.tensor(name, (1, 8)) for name in "xay")
    constants = b.tensor("w", value=weight), b.tensor("b", value=bias)
    b.op("FULLY_CONNECTED", (x, *constants), (a,))
    b.op("FULLY_CONNECTED", (a, *constants), (y,))
    source, out = tmp_path / "f.tflite", tmp_path / "int8.tflite"
    source.write_bytes(b.finish({"x": x}, {"y": y}))
    known = {x: Quantization(0.03, 1), a: Quantization(0.05, -2), y: Quantization(0.08, 3)}
    held = {constants[0]: Integers(integers, scales)}
    found = Carried(read_model(source), known, (), held, {}, (), (), ())
    quantize_file(source, out, found.ranges)
    assert write_exact(out, found)["biases"] == 2
    model = read_model(out)
    for op, given in zip(model.operators, (known[x], known[a])):
        _, kernel, added = (model.tensors[i] for i in op.inputs)
        np.testing.assert_array_equal(model.constant(kernel), integers)
        step = np.float64(np.float32(given.scale)) * scales
        np.testing.assert_array_equal(model.constant(added), np.rint(bias / step))


def test_it_answers_as_the_qdq_model(tmp_path: Path) -> None:
    proto = qdq_model()
    onnx.save(proto, tmp_path / "qdq.onnx")
    found = located(tmp_path, proto)
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "f.tflite", out, found.ranges)
    write_exact(out, found)
    int8 = open_model(out, kernels="reference")
    for seed in range(5):
        (expected,) = run_onnx(tmp_path / "qdq.onnx", [feed(seed)])
        given = {"x": np.ascontiguousarray(feed(seed)["x"].transpose(0, 2, 3, 1))}
        answer = int8.run_float(given)["y"].transpose(0, 3, 1, 2)
        assert np.rint(np.abs(answer - expected["y"]) / Y.scale).max() <= 1


@pytest.mark.parametrize("sides", ["float32", "uint8"])
def test_other_types_at_the_boundary_have_the_same_scales(sides: Any, tmp_path: Path) -> None:
    found = located(tmp_path, qdq_model())
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "f.tflite", out, found.ranges, input_type=sides, output_type=sides)
    write_exact(out, found)
    model = read_model(out)
    conv = next(op for op in model.operators if op.code == "CONV_2D")
    assert model.tensors[conv.inputs[0]].scales == (X.scale,)
    assert model.tensors[conv.outputs[0]].scales == (Y.scale,)
    for index, wanted in ((model.inputs[0], X), (model.outputs[0], Y)):
        tensor = model.tensors[index]
        assert tensor.dtype == sides
        if sides == "uint8":
            assert tensor.scales == (wanted.scale,)
            assert tensor.zero_points == (wanted.zero_point + 128,)


def test_a_folded_factor_moves_into_the_scale(tmp_path: Path) -> None:
    """Also a negative one, and one of zero: the integers stay, up to their sign."""
    factors = np.float32([2.5, -0.3, 0.0, 1.0])
    annotations = take_out(qdq_model()).annotations  # type: ignore[union-attr]
    (name,) = annotations.weights
    real = KERNEL.astype(np.float32) * SCALES.reshape(4, 1, 1, 1)
    model = read_model(float_file(tmp_path / "f.tflite", factors))
    found, plain, used = find_weights(annotations, {name: real}, model)
    assert not plain and used == {name}
    (held,) = found.values()
    np.testing.assert_allclose(held.scales[[0, 1, 3]], SCALES[[0, 1, 3]] * [2.5, 0.3, 1], 1e-6)
    assert held.scales[3] == SCALES[3] and held.scales[2] == SCALES[2]
    signs = np.sign(factors).reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(held.integers, KERNEL.transpose(0, 2, 3, 1) * signs)


def test_a_weight_that_is_not_there(tmp_path: Path) -> None:
    annotations = take_out(qdq_model()).annotations  # type: ignore[union-attr]
    (name,) = annotations.weights
    other = np.roll(KERNEL, 1, axis=0) * SCALES.reshape(4, 1, 1, 1)
    model = read_model(float_file(tmp_path / "f.tflite"))
    found, plain, used = find_weights(annotations, {name: other}, model)
    assert not found and not used
    assert [model.tensors[index].name for index in plain] == ["weight"]
    with pytest.raises(StageError, match="no weight of the float file has the integers of 'w_real"):
        require_all(annotations, used)


def test_logits_without_a_pair_are_missing_and_named(tmp_path: Path) -> None:
    found = located(tmp_path, qdq_model("y = Relu(c)"))
    assert found.names(found.missing) == ["output"]
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "f.tflite", out, {**found.ranges, "output": Range(0.0, 3.0, 0.0)})
    evidence = write_exact(out, found)
    assert evidence["calibrated"] == ["output"]
    (warning,) = described(evidence)[1]
    assert "1 activations have no scale in the model: calibrated here (output)" in warning


def test_a_value_before_a_fused_activation_is_listed(tmp_path: Path) -> None:
    """Conv -> pair -> Relu -> pair: the fused operator rounds once."""
    tail = PAIR.format("c", "d", "d") + "r = Relu(d)\n" + PAIR.format("r", "y", "y")
    wide = {"ds": np.float32(0.2), "dz": np.int8(0)}
    found = located(tmp_path, qdq_model(tail, **wide))
    assert found.fused_away == ("c",)
    with pytest.raises(StageError, match=r"'c' is quantised up to 0\.127, and .* up to 4.4"):
        located(tmp_path, qdq_model(tail, ds=np.float32(0.001), dz=np.int8(0)))


def test_a_value_that_was_fused_into_something_else(tmp_path: Path) -> None:
    """Two readers: no single operator stands for the rounding."""
    tail = (
        PAIR.format("c", "d", "d") + "r = Relu(d)\n n = Neg(d)\n m = Mul(n, zero)\n"
        "s = Add(r, m)\n" + PAIR.format("s", "y", "y")
    )
    arrays = {"ds": np.float32(0.2), "dz": np.int8(0), "zero": np.float32(0)}
    with pytest.raises(StageError, match="no tensor of the float file holds 'c'") as caught:
        located(tmp_path, qdq_model(tail, **arrays))
    assert "quantise the result of a fused group" in caught.value.hint


def test_a_bias_beyond_int32(tmp_path: Path) -> None:
    found = located(tmp_path, qdq_model())
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "f.tflite", out, found.ranges)
    ((index, held),) = found.weights.items()
    tiny = replace(held, scales=np.full(4, 1e-12, np.float32))
    with pytest.raises(StageError, match=r"bias 'bias' is .* beyond int32"):
        write_exact(out, replace(found, weights={index: tiny}))


def test_another_scale_in_the_file_is_refused(tmp_path: Path) -> None:
    found = located(tmp_path, qdq_model())
    out = tmp_path / "int8.tflite"
    ranges = {**found.ranges, "output": Range(-2.0, 3.0, 0.0)}
    quantize_file(tmp_path / "f.tflite", out, ranges)
    before = out.read_bytes()
    with pytest.raises(StageError, match=r"'output' has scale 0\.017"):
        write_exact(out, found)
    assert out.read_bytes() == before


def test_a_float_model_brings_nothing(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] y)'
    onnx.save(onnx.parser.parse_model(f"{text} {{ y = Relu(x) }}"), tmp_path / "m.onnx")
    path = float_file(tmp_path / "f.tflite")
    assert carried(tmp_path / "m.onnx", path, {"x": "NCHW"}, feed()) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "int16x8"), ("weights", "per_tensor"), ("equalize", True),
        ("rounding", "gptq"), ("correct_bias", "layers"), ("goal", {"min_agreement": 0.9}),
        ("qat", {}), ("keep_float", ["output"]), ("int16", ["output"]), ("head", "classes"),
    ],
)  # fmt: skip
def test_options_that_would_change_the_scales(key: str, value: Any, tmp_path: Path) -> None:
    given = located(tmp_path, qdq_model())
    refuse_options(Quantize(), given)
    with pytest.raises(RecipeError, match=f"{key} would change them") as caught:
        refuse_options(Quantize.model_validate({key: value}), given)
    assert caught.value.where == f"quantize.{key}"


def test_ranges_are_for_what_has_no_scale(tmp_path: Path) -> None:
    """Logits without a pair: their range may be chosen, that of the input may not."""
    given = located(tmp_path, qdq_model("y = Identity(c)"))
    assert given.names(given.missing) == ["output"]
    rules = [{"match": name, "ranges": "minmax"} for name in ("^output$", "^inp")]
    free = {"ranges": "mse", "head": "classes", "tensors": rules[:1]}
    refuse_options(Quantize.model_validate(free), given)
    with pytest.raises(RecipeError, match="would change them") as caught:
        refuse_options(Quantize.model_validate({"tensors": rules}), given)
    assert caught.value.where == "quantize.tensors.1"


def test_scales_in_place() -> None:
    b = Builder()
    x = b.tensor("x", (1, 4), "int8", scales=[0.5], zeros=[3])
    y = b.tensor("y", (1, 4), "int8", scales=[0.25], zeros=[-1])
    b.op("QUANTIZE", (x,), (y,))
    data = b.finish({"x": x}, {"y": y})
    made = with_scales(data, {x: (0.1,)}, {y: (7,)})
    tensors = parse_model(made).tensors
    assert tensors[x].scales == (float(np.float32(0.1)),) and tensors[x].zero_points == (3,)
    assert tensors[y].scales == (0.25,) and tensors[y].zero_points == (7,)
    assert len(made) == len(data)
    with pytest.raises(StageError, match="tensor 'x' has 1 scales, given 2"):
        with_scales(data, {x: (0.1, 0.2)}, {})
    with pytest.raises(StageError, match="tensor 'x' has no room for 2 zero points"):
        with_scales(data, {}, {x: (1, 2)})
