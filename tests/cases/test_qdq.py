"""QDQ models from other quantisers: int8 files with exactly their scales and integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from edgefuse.tflite.read import TfliteModel, read_model

from .pipeline import Run, Tflite, batches, run, run_onnx_as_given, samples, write_recipe

Array = np.ndarray[Any, Any]
SHAPE = (3, 16, 16)
HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,16,16] x) => (float[1,5] y) '


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[dict[str, Array]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def with_arrays(body: str, arrays: dict[str, Any]) -> Any:
    proto = onnx.parser.parse_model(f"{HEAD} {{ {body} }}")
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def normal(random: np.random.Generator, *shape: int, scale: float = 0.4) -> Array:
    return (random.normal(size=shape) * scale).astype(np.float32)


def run_qdq(folder: Path, name: str, proto: Any, until: str = "check", **sections: Any) -> Run:
    onnx.save(proto, folder / f"{name}.onnx")
    model = {
        "onnx": {"path": f"{name}.onnx"},
        "inputs": [{"name": "x", "shape": [1, *SHAPE]}],
    }
    data = samples({"x": SHAPE}, 20, seed=1), samples({"x": SHAPE}, 8, seed=2)
    gates = {"accuracy": {"min_sqnr_db": 1}}
    return run(write_recipe(folder, name, model, *data, gates=gates, **sections), until=until)


def steps_apart(folder: Path, name: str, made: Run) -> Array:
    """How many steps the int8 file's outputs are from those of the QDQ model, in onnxruntime."""
    feeds = batches(samples({"x": SHAPE}, 20, seed=3))
    expected = run_onnx_as_given(folder / f"{name}.onnx", feeds)
    int8 = Tflite(made.int8_file)
    scale = int8.outputs["y"]["quantization"][0]
    found = [int8(feed)["y"] for feed in feeds]
    apart = [np.abs(a["y"] - b) / scale for a, b in zip(expected, found)]
    return np.rint(np.stack(apart)).astype(int)


def scales_of(proto: Any) -> set[tuple[float, int]]:
    """Scale and zero point in int8 terms of every QuantizeLinear on an activation."""
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    found = set()
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in arrays:
            scale, zero = (arrays[name] for name in node.input[1:])
            shift = 128 if zero.dtype == np.uint8 else 0
            found.add((float(scale), int(zero) - shift))
    return found


def activation_scales(model: TfliteModel) -> set[tuple[float, int]]:
    """The same of the int8 file's tensors."""
    used = [t for op in model.operators for t in model.activations_of(op)]
    return {(t.scales[0], t.zero_points[0]) for t in used}


def integers(model: TfliteModel) -> list[list[int]]:
    """The sorted integers of each weight."""
    weights = (t for t in model.tensors if t.is_constant and t.dtype == "int8")
    return sorted(sorted(model.constant(t).ravel().tolist()) for t in weights)


@pytest.mark.parametrize("per_channel", [True, False])
def test_onnxruntime_static_quantisation(per_channel: bool, tmp_path: Path) -> None:
    """A residual block, Clip and Relu removed by the quantiser; uint8 activations."""
    random = np.random.default_rng(0)
    float_model = with_arrays(
        "a = Conv<pads=[1,1,1,1]>(x, w1, b1)\n b = Clip(a, zero, six)\n"
        "c = Conv<pads=[1,1,1,1], group=8>(b, w2, b2)\n d = Relu(c)\n"
        "e = Conv(d, w3, b3)\n f = Add(e, b)\n m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(f)\n"
        "g = GlobalAveragePool(m)\n h = Flatten(g)\n y = Gemm<transB=1>(h, w4, b4)",
        {
            "zero": np.float32(0), "six": np.float32(6),
            "w1": normal(random, 8, 3, 3, 3), "b1": normal(random, 8),
            "w2": normal(random, 8, 1, 3, 3), "b2": normal(random, 8),
            "w3": normal(random, 8, 8, 1, 1), "b3": normal(random, 8),
            "w4": normal(random, 5, 8, scale=1), "b4": normal(random, 5),
        },
    )  # fmt: skip
    quantized = tmp_path / "q.onnx"
    quantize_static(
        float_model,
        quantized,
        Reader(batches(samples({"x": SHAPE}, 20, seed=4))),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    proto = onnx.load(quantized)
    assert not {"Relu", "Clip"} & {node.op_type for node in proto.graph.node}
    made = run_qdq(tmp_path, "static", proto)
    assert not made.error
    model = read_model(made.int8_file)
    assert activation_scales(model) == scales_of(proto)
    arrays = [onnx.numpy_helper.to_array(t) for t in proto.graph.initializer]
    stored = (a for a in arrays if a.dtype == np.int8 and a.ndim > 1)
    assert integers(model) == sorted(sorted(a.ravel().tolist()) for a in stored)
    apart = steps_apart(tmp_path, "static", made)
    assert apart.max() <= 1
    summaries = {s["name"]: s["summary"] for s in made.report["stages"]}
    assert summaries["export"].startswith("relative error 0.0e+00 on")
    assert "and 4 weights as given" in summaries["quantize"]
    assert not [text for text in made.report["warnings"] if "no scale in the model" in text]


class Views(torch.nn.Module):
    """Whose export, without an optimiser, computes shapes, axes and bounds from constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.nn.functional.relu6(self.norm(self.first(x)))
        b = self.second(a).flatten(2).view(x.shape[0], 8, 2, -1).mean(3)
        return self.head(b.view(b.shape[0], -1))


def test_an_unfused_dynamo_export_quantised_by_onnxruntime(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Views().eval()
    with torch.no_grad():
        net.norm.running_var.uniform_(0.2, 0.6)
        net.norm.weight.uniform_(0.5, 2)
    exported, quantized = tmp_path / "e.onnx", tmp_path / "q.onnx"
    torch.onnx.export(
        net, (torch.zeros(1, *SHAPE),), exported, dynamo=True, optimize=False, input_names=["x"],
        output_names=["y"], opset_version=18, verbose=False,
    )  # fmt: skip
    quantize_static(
        exported,
        quantized,
        Reader(batches(samples({"x": SHAPE}, 20, seed=4))),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    made = run_qdq(tmp_path, "unfused", onnx.load(quantized), until="gate_accuracy")
    assert not made.error
    (gate,) = made.report["gates"]
    # Apart by what fusing does not round twice only; each alone loses more against float.
    assert gate["figures"]["against_qdq"]["sqnr_db"] > 30
    assert set(read_model(made.int8_file).operator_counts()) <= {
        "CONV_2D", "DEPTHWISE_CONV_2D", "RESHAPE", "TRANSPOSE", "MEAN", "FULLY_CONNECTED"
    }  # fmt: skip
    summaries = {s["name"]: s["summary"] for s in made.report["stages"]}
    assert summaries["export"].startswith("relative error 0.0e+00 on")
    assert "3 weights as given" in summaries["quantize"]
    assert steps_apart(tmp_path, "unfused", made).max() <= 3


def fake(value: str, result: str, name: str, axis: str = "") -> str:
    return (
        f"{result}q = QuantizeLinear{axis}({value}, {name}_s, {name}_z)\n"
        f"{result} = DequantizeLinear{axis}({result}q, {name}_s, {name}_z)\n"
    )


def test_fake_quantisation_as_nncf_and_torch_export_it(tmp_path: Path) -> None:
    """Float weights behind pairs, a normalisation behind a weight, logits without a pair, a
    pooling and a concatenation between scales."""
    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    for name, shape in {"w1": (8, 3, 3, 3), "w2": (4, 3, 1, 1), "w3": (5, 12)}.items():
        weight = normal(random, *shape)
        arrays[name] = weight
        arrays[f"{name}_s"] = np.abs(weight).reshape(shape[0], -1).max(1) / np.float32(127)
        arrays[f"{name}_z"] = np.zeros(shape[0], np.int8)
    for name, scale, zero in (
        ("x", 0.033, np.int8(-3)), ("a", 0.021, np.uint8(0)), ("b", 0.017, np.int8(11)),
        ("c", 0.025, np.int8(-70)), ("p", 0.02, np.int8(-60)), ("g", 0.011, np.int8(-90)),
    ):  # fmt: skip
        arrays[f"{name}_s"], arrays[f"{name}_z"] = np.float32(scale), zero
    arrays |= {
        "gamma": random.uniform(0.5, 2, 8).astype(np.float32) * np.float32([1, -1] * 4),
        "beta": normal(random, 8), "mean": normal(random, 8),
        "var": random.uniform(0.5, 2, 8).astype(np.float32),
        "b2": normal(random, 4), "b3": normal(random, 5),
    }  # fmt: skip
    proto = with_arrays(
        fake("x", "xf", "x") + fake("w1", "w1f", "w1", "<axis=0>")
        + "a = Conv<pads=[1,1,1,1]>(xf, w1f)\n an = BatchNormalization(a, gamma, beta, mean, var)\n"
        + "ar = Relu(an)\n" + fake("ar", "af", "a") + fake("w2", "w2f", "w2", "<axis=0>")
        + "b = Conv(xf, w2f, b2)\n" + fake("b", "bf", "b") + "c = Concat<axis=1>(af, bf)\n"
        + fake("c", "cf", "c") + "p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(cf)\n"
        + fake("p", "pf", "p") + "g = GlobalAveragePool(pf)\n" + fake("g", "gf", "g")
        + "h = Flatten(gf)\n" + fake("w3", "w3f", "w3", "<axis=0>")
        + "y = Gemm<transB=1>(h, w3f, b3)",
        arrays,
    )  # fmt: skip
    made = run_qdq(tmp_path, "fake", proto)
    assert not made.error
    model = read_model(made.int8_file)
    summaries = {s["name"]: s["summary"] for s in made.report["stages"]}
    assert "6 activations and 3 weights as given" in summaries["quantize"]
    (warning,) = [text for text in made.report["warnings"] if "no scale in the model" in text]
    assert warning.startswith("1 activations have no scale in the model: calibrated here")
    # What goes into a concatenation has its scale in the file; what a pooling makes has its own.
    merged = {(float(arrays[f"{n}_s"]), int(arrays[f"{n}_z"]) - shift) for n, shift in
              (("a", 128), ("b", 0))}  # fmt: skip
    assert scales_of(proto) - activation_scales(model) == merged
    assert model.operator_counts()["QUANTIZE"] == 1
    expected = [np.rint(arrays[n] / arrays[f"{n}_s"].reshape(-1, *[1] * (arrays[n].ndim - 1)))
                for n in ("w1", "w2", "w3")]  # fmt: skip
    magnitudes = sorted(sorted(np.abs(a).astype(int).ravel().tolist()) for a in expected)
    assert sorted(sorted(map(abs, row)) for row in integers(model)) == magnitudes
    assert steps_apart(tmp_path, "fake", made).max() <= 2


def test_what_cannot_be_held_ends_the_run(tmp_path: Path) -> None:
    proto = with_arrays(
        fake("x", "xf", "x") + "h = Flatten(xf)\n y = Gemm<transB=1>(h, w)",
        {"x_s": np.float32(0.1), "x_z": np.int16(0), "w": np.ones((5, 768), np.float32)},
    )
    proto.opset_import[0].version = 21
    proto.ir_version = 10
    made = run_qdq(tmp_path, "wide", proto)
    assert "'x' is quantised to int16" in made.error and "8 bits" in made.error


def test_options_that_would_change_the_scales(tmp_path: Path) -> None:
    proto = with_arrays(
        fake("x", "xf", "x") + "h = Flatten(xf)\n y = Gemm<transB=1>(h, w)",
        {"x_s": np.float32(0.1), "x_z": np.int8(0), "w": np.ones((5, 768), np.float32)},
    )
    made = run_qdq(tmp_path, "options", proto, quantize={"correct_bias": "head"})
    assert "correct_bias would change them" in made.error
    assert "quantize.correct_bias" in made.error
