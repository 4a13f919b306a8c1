"""A small inverted-residual network, its int8 file, and faults planted into that file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tflite.tiny import Builder

from edgefuse.quant.calibration.calibrate import calibrate
from edgefuse.quant.calibration.ranges import choose
from edgefuse.quant.writing.quantize import quantize_file
from edgefuse.tflite.inspect import WEIGHTED
from edgefuse.tflite.read import Operator, TfliteModel, read_model

CLASSES = 10


def feeds(size: int, count: int, seed: int = 3) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    shape = (1, size, size, 3)
    return [{"picture": random.normal(size=shape).astype(np.float32)} for _ in range(count)]


def inverted_residuals(blocks: int) -> bytes:
    """picture [1, 96, 96, 3] -> stem, blocks of expand, depthwise, project (and ADD) -> classes.

    As MobileNetV2 at a quarter of its width: RELU6 behind all but the projections, strides at the
    stem and at every second block.
    """
    b, random = Builder(), np.random.default_rng(0)

    def convolution(code: str, given: int, shape: Sequence[int], size: int, act: str) -> int:
        channels = shape[3] if code == "DEPTHWISE_CONV_2D" else shape[0]
        fan = int(np.prod(shape)) // channels
        weight = random.normal(size=shape).astype(np.float32) * np.float32((2 / fan) ** 0.5)
        bias = random.normal(size=channels).astype(np.float32) * np.float32(0.1)
        k = len(b.graph.tensors)
        out = b.tensor(f"value{k}", (1, size, size, channels))
        held = b.tensor(f"weight{k}", value=weight), b.tensor(f"bias{k}", value=bias)
        b.op(code, (given, *held), (out,), act)
        old = b.graph.tensors[given].shape[1]
        options = b.graph.operators[-1].builtinOptions
        options.strideW = options.strideH = old // size
        return out

    image = b.tensor("picture", (1, 96, 96, 3))
    size, width = 48, 8
    value = convolution("CONV_2D", image, (width, 3, 3, 3), size, "RELU6")
    for block in range(blocks):
        given, wide = value, 4 * width
        value = convolution("CONV_2D", value, (wide, 1, 1, width), size, "RELU6")
        if block % 2 == 0:
            size, width = size // 2, width + 8
        value = convolution("DEPTHWISE_CONV_2D", value, (1, 3, 3, wide), size, "RELU6")
        value = convolution("CONV_2D", value, (width, 1, 1, wide), size, "NONE")
        if block % 2:
            total = b.tensor(f"sum{block}", (1, size, size, width))
            b.op("ADD", (value, given), (total,))
            value = total
    pooled, logits = b.tensor("pooled", (1, width)), b.tensor("out", (1, CLASSES))
    b.op("MEAN", (value, b.tensor("axes", value=np.array([1, 2], np.int32))), (pooled,))
    head = b.tensor("head", value=random.normal(size=(CLASSES, width)).astype(np.float32))
    b.op("FULLY_CONNECTED", (pooled, head, b.tensor("bias", value=np.zeros(10, "f4"))), (logits,))
    return b.finish({"picture": image}, {"logits": logits})


def quantised(
    folder: Path,
    data: bytes,
    samples: Sequence[dict[str, Any]],
    *,
    name: str = "int8",
    narrowed: str = "",
    share: float = 0.2,
) -> tuple[Path, Path]:
    """The float file and its int8 twin.

    Args:
        narrowed: a tensor whose range is cut to ``share`` of what it takes: a calibration that
            went wrong.
    """
    float_path, int8_path = folder / "float.tflite", folder / f"{name}.tflite"
    float_path.write_bytes(data)
    ranges = choose(calibrate(float_path, samples), "percentile", 0.01, {"out"})
    if narrowed:
        held = ranges[narrowed]
        ranges[narrowed] = replace(held, low=held.low * share, high=held.high * share)
    quantize_file(float_path, int8_path, ranges)
    return float_path, int8_path


class Fault:
    """Edits an int8 file through the schema's objects."""

    def __init__(self, path: Path) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.path = path
        self.model: TfliteModel = read_model(path)
        self._schema = schema
        self._file = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes()))

    def operator(self, code: str, nth: int) -> Operator:
        return [op for op in self.model.operators if op.code == code][nth]

    def _save(self) -> None:
        import flatbuffers

        builder = flatbuffers.Builder(1024)
        builder.Finish(self._file.Pack(builder), b"TFL3")
        self.path.write_bytes(bytes(builder.Output()))

    def _tensor(self, index: int) -> Any:
        return self._file.subgraphs[0].tensors[index]

    def swap_scales(self, op: Operator, a: int, b: int) -> None:
        """Two channels' weight scales exchanged."""
        held = self._tensor(op.inputs[WEIGHTED[op.code]]).quantization
        scales = [float(s) for s in held.scale]
        scales[a], scales[b] = scales[b], scales[a]
        held.scale = scales
        self._save()

    def overflow_bias(self, op: Operator, channel: int) -> None:
        """One channel's bias as a quantiser leaves it that met a value beyond int32."""
        tensor = self.model.tensors[op.inputs[2]]
        value = self.model.constant(tensor).copy()
        value[channel] = np.iinfo(np.int32).max
        self._file.buffers[tensor.buffer].data = np.frombuffer(value.tobytes(), np.uint8)
        self._save()


def far_apart(model: TfliteModel, op: Operator) -> tuple[int, int]:
    """The channels with the least and the greatest weight scale."""
    scales = np.asarray(model.tensors[op.inputs[WEIGHTED[op.code]]].scales)
    return int(scales.argmin()), int(scales.argmax())
