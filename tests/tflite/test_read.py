from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgefuse.artifact import Quantization
from edgefuse.errors import SourceError, StageError
from edgefuse.tflite.read import parse_model, read_model, signature_of

from .conftest import Pair
from .tiny import Builder


def test_operators_tensors_and_constants(pair: Pair) -> None:
    model = read_model(pair.float_path)
    assert model.operator_counts() == {
        "ADD": 1,
        "CONV_2D": 3,
        "DEPTHWISE_CONV_2D": 1,
        "FULLY_CONNECTED": 1,
        "MEAN": 1,
    }
    assert [op.activation for op in model.operators] == [
        *("RELU6", "RELU6", "RELU", "NONE", "NONE", "NONE", "NONE")
    ]
    stem = model.tensors[model.operators[0].inputs[1]]
    assert (stem.shape, stem.dtype, stem.is_constant, stem.nbytes) == (
        (8, 3, 3, 3),
        "float32",
        True,
        8 * 27 * 4,
    )
    value = model.constant(stem)
    assert np.array_equal(value, pair.held.stem)
    assert not value.flags.writeable and np.shares_memory(value, np.frombuffer(model.data, "u1"))
    assert len(model.float_operators()) == 7
    with pytest.raises(StageError, match="not a constant"):
        model.constant(model.tensors[model.inputs[0]])


def test_quantised_file(pair: Pair) -> None:
    model = read_model(pair.int8_path)
    stem = model.tensors[model.operators[0].inputs[1]]
    assert (stem.dtype, len(stem.scales), stem.quantized_dimension) == ("int8", 8, 0)
    deep = model.tensors[model.operators[1].inputs[1]]
    assert (len(deep.scales), deep.quantized_dimension) == (8, 3)
    gap = np.abs(model.real_constant(deep) - pair.held.depthwise)
    assert (gap <= np.asarray(deep.scales) * 0.501).all()
    signature = signature_of(model)
    (image,) = signature.inputs
    assert (image.name, image.shape, image.dtype, image.layout) == (
        "picture",
        (1, 8, 8, 3),
        "int8",
        "NHWC",
    )
    assert isinstance(image.quantization, Quantization) and image.quantization.scale > 0
    assert [spec.name for spec in signature.outputs] == ["logits"]
    assert signature.outputs[0].layout == "other"


def test_names_come_from_the_tensors_without_a_signature() -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    b.op("ADD", (x, x), (y,))
    model = parse_model(b.finish({"ignored": x}, {"also": y}, signature=False))
    assert model.signature_key == ""
    assert [spec.name for spec in signature_of(model).inputs] == ["x"]


@pytest.mark.parametrize("kept", [0, 7, 8, 40, 200, 1000, -1, -300])
def test_truncated_file(pair: Pair, kept: int) -> None:
    data = pair.float_path.read_bytes()
    with pytest.raises(SourceError, match=r"too short|truncated"):
        parse_model(data[:kept])


def test_every_truncation_is_noticed(pair: Pair) -> None:
    data = pair.float_path.read_bytes()
    for kept in range(0, len(data), 97):
        with pytest.raises(SourceError):
            parse_model(data[:kept])


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="identifier b'PK"):
        parse_model(b"PK\x03\x04" * 8)
    with pytest.raises(SourceError, match="cannot be read"):
        read_model(tmp_path / "absent.tflite")
    (tmp_path / "x.tflite").write_bytes(b"\xff\xff\xff\xffTFL3" + b"\xff" * 64)
    with pytest.raises(SourceError, match="damaged"):
        read_model(tmp_path / "x.tflite")


def test_several_subgraphs_are_refused() -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    b.op("ADD", (x, x), (y,))
    b.model.subgraphs = [b.graph, b.graph]
    with pytest.raises(StageError, match="2 subgraphs"):
        parse_model(b.finish({"x": x}, {"y": y}))


def test_constant_of_the_wrong_size() -> None:
    b = Builder()
    x, y = b.tensor("x", (1, 4)), b.tensor("y", (1, 4))
    c = b.tensor("c", value=np.ones(4, np.float32))
    b.graph.tensors[c].shape = [5]
    b.op("ADD", (x, c), (y,))
    with pytest.raises(SourceError, match="needs 20 bytes, its buffer has 16"):
        parse_model(b.finish({"x": x}, {"y": y}))


def test_conversions_at_the_boundary_are_not_float_operators() -> None:
    b = Builder()
    x, q, y = b.tensor("x", (1, 4)), b.tensor("q", (1, 4), "int8", scales=[1.0]), 0
    y = b.tensor("y", (1, 4))
    b.op("QUANTIZE", (x,), (q,))
    b.op("DEQUANTIZE", (q,), (y,))
    assert parse_model(b.finish({"x": x}, {"y": y})).float_operators() == ()
    z = b.tensor("z", (1, 4))
    b.op("ADD", (y, y), (z,))
    b.model.signatureDefs = None
    labels = [op.label for op in parse_model(b.finish({"x": x}, {"z": z})).float_operators()]
    assert labels == ["DEQUANTIZE#1", "ADD#2"]
