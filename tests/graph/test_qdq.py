"""QuantizeLinear and DequantizeLinear taken out, and proven by putting them back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from edgefuse.artifact import Quantization
from edgefuse.errors import SourceError
from edgefuse.graph.clean import clean_export
from edgefuse.graph.qdq import TakenOut, put_back, take_out
from edgefuse.graph.quantization import Annotations, WeightScales, annotations_of
from edgefuse.graph.verify import run_onnx

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


def model(body: str, outputs: str = "float[1,4,6,6] y", opset: int = 21, **arrays: Any) -> Any:
    """A model of one input ``x`` [1,3,8,8]; arrays keep their types."""
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1,3,8,8] x) => ({outputs})'
    proto = onnx.parser.parse_model(f"{text} {{ {body} }}")
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def pair(value: str, result: str, scale: str = "s", zero: str = "z") -> str:
    return (
        f"{result}_q = QuantizeLinear({value}, {scale}, {zero})\n"
        f"{result} = DequantizeLinear({result}_q, {scale}, {zero})\n"
    )


S, U8, I8 = np.float32(0.03), np.uint8(128), np.int8(0)
KERNEL = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
CHANNELS = RANDOM.uniform(0.001, 0.02, 4).astype(np.float32)
ZEROS = np.zeros(4, np.int8)
CONV = (
    pair("x", "a")
    + "w = DequantizeLinear<axis=0>(k, ks, kz)\n b = DequantizeLinear(bq, bs, bz)\n"
    + "c = Conv(a, w, b)\n"
)


def conv(tail: str, outputs: str = "float[1,4,6,6] y", **arrays: Any) -> Any:
    """The pair of x, a convolution with per-channel weights and an int32 bias, and ``tail``."""
    given: dict[str, Any] = {
        "s": S, "z": U8, "k": KERNEL, "ks": CHANNELS, "kz": ZEROS,
        "bq": np.asarray([900, -40, 7, 123456789], np.int32), "bs": np.float32(S * CHANNELS[0]),
        "bz": np.int32(0),
    }  # fmt: skip
    return model(CONV + tail, outputs, **{**given, **arrays})


def feeds() -> list[dict[str, Array]]:
    return [{"x": (RANDOM.normal(size=(1, 3, 8, 8)) * 2).astype(np.float32)} for _ in range(3)]


def taken(proto: Any) -> TakenOut:
    """Taken out, with the proof that nothing was lost."""
    onnx.checker.check_model(proto, full_check=True)
    found = take_out(proto)
    assert found is not None
    onnx.checker.check_model(found.proto, full_check=True)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {n.op_type for n in found.proto.graph.node}
    given = feeds()
    back = put_back(found.proto, found.annotations)
    for expected, actual in zip(run_onnx(found.reference, given), run_onnx(back, given)):
        assert list(expected) == list(actual)
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name])
    if not found.also_float:
        for expected, actual in zip(run_onnx(proto, given), run_onnx(back, given)):
            np.testing.assert_array_equal(actual["y"], expected["y"])
    return found


def constants(proto: Any) -> dict[str, Array]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}


def operators(proto: Any) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_a_float_model_is_none_of_this() -> None:
    assert take_out(model("y = Conv(x, w)", w=KERNEL.astype(np.float32))) is None


def test_activations_weights_and_bias() -> None:
    found = taken(conv(pair("c", "y", "s2", "z2"), s2=np.float32(0.5), z2=np.uint8(100)))
    assert operators(found.proto) == ["Conv"]
    assert found.annotations.activations == {
        "x": Quantization(float(S), 0),
        "y": Quantization(0.5, -28),
    }
    ((name, scales),) = found.annotations.weights.items()
    assert scales == WeightScales(tuple(CHANNELS.tolist()), 0)
    real = KERNEL * CHANNELS.reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(constants(found.proto)[name], real)
    (bias,) = (v for v in constants(found.proto).values() if v.shape == (4,))
    wanted = np.float32([900, -40, 7, 123456789]) * np.float32(S * CHANNELS[0])
    np.testing.assert_array_equal(bias, wanted)


def test_a_float_weight_is_rounded_as_quantize_linear_does() -> None:
    """As NNCF and torch's fake quantisation export it; ties go to even, and it saturates."""
    scale = np.float32(0.25)
    weight = (RANDOM.integers(-300, 300, (4, 3, 3, 3)) * 0.125).astype(np.float32)
    body = pair("x", "a") + pair("w", "wq", "ws", "wz") + "y = Conv(a, wq)"
    found = taken(model(body, s=S, z=U8, w=weight, ws=scale, wz=np.int8(0)))
    ((name, scales),) = found.annotations.weights.items()
    assert scales == WeightScales((0.25,), None)
    steps = np.clip(np.rint(weight / scale), -128, 127)
    np.testing.assert_array_equal(constants(found.proto)[name], steps * scale)
    assert (np.abs(weight / scale) % 1 == 0.5).any()


def test_constants_and_casts_for_scales() -> None:
    """torch writes scales as Constant nodes, and zero points through a Cast."""
    body = (
        "s = Constant<value_float=0.25>()\n zf = Constant<value_int=3>()\n"
        "z = Cast<to=3>(zf)\n" + pair("x", "y")
    )
    found = taken(model(body, "float[1,3,8,8] y"))
    assert found.annotations.activations == {"x": Quantization(0.25, 3)}


def test_no_zero_point_is_uint8_from_zero() -> None:
    body = "q = QuantizeLinear(x, s)\n y = DequantizeLinear(q, s)"
    found = taken(model(body, "float[1,3,8,8] y", s=S))
    assert found.annotations.activations == {"x": Quantization(float(S), -128)}


@pytest.mark.parametrize("zero", [128, 131])
def test_unsigned_weights_that_fit(zero: int) -> None:
    stored = np.clip(KERNEL.astype(np.int16) // 2 + zero, 0, 255).astype(np.uint8)
    tail = pair("c", "y", "s", "z")
    found = taken(conv(tail, k=stored, kz=np.full(4, zero, np.uint8)))
    (name,) = found.annotations.weights
    real = constants(found.proto)[name] / CHANNELS.reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(np.rint(real), stored.astype(int) - zero)


@pytest.mark.parametrize(
    ("scale", "operator"), [(0.5, "Relu"), (6 / 255, "Clip"), (6.01 / 255, "Relu")]
)
def test_saturation_at_zero_stays_as_an_activation(scale: float, operator: str) -> None:
    """onnxruntime's quantiser removes a Relu or Clip whose output range says the same."""
    tail = pair("c", "y", "s2", "z2")
    found = taken(conv(tail, s2=np.float32(scale), z2=np.uint8(0)))
    assert operators(found.proto) == ["Conv", operator]
    assert found.annotations.activations["y"] == Quantization(float(np.float32(scale)), -128)


def test_several_readers_and_several_pairs_are_one_tensor() -> None:
    tail = (
        pair("c", "d") + pair("c", "e") + "f = Relu(d)\n g = Neg(e)\n"
        + pair("f", "h") + pair("g", "i") + "y = Add(h, i)"
    )  # fmt: skip
    found = taken(conv(tail))
    assert set(found.annotations.activations) == {"x", "c", "f", "g"}
    assert operators(found.proto) == ["Conv", "Relu", "Neg", "Add"]


def test_a_pair_behind_a_pair_of_the_same_scale_is_the_same() -> None:
    found = taken(conv(pair("c", "d") + pair("d", "y")))
    assert set(found.annotations.activations) == {"x", "y"}


def test_an_input_that_is_an_output() -> None:
    found = taken(model(pair("x", "y"), "float[1,3,8,8] y", s=S, z=U8))
    assert operators(found.proto) == ["Identity"]


def test_readers_of_the_float_value_are_named_and_redirected() -> None:
    found = taken(conv(pair("c", "d") + "e = Relu(d)\n y = Add(e, c)"))
    assert found.also_float == ("c",)
    expected = run_onnx(conv(pair("c", "d") + "e = Relu(d)\n y = Add(e, d)"), feeds()[:1])
    assert expected[0]["y"].shape == (1, 4, 6, 6)


def test_an_output_that_is_also_quantised() -> None:
    outputs = "float[1,4,6,6] y, float[1,4,6,6] c"
    found = taken(conv(pair("c", "d") + "y = Relu(d)", outputs))
    assert found.also_float == ("c",)
    assert [o.name for o in found.proto.graph.output] == ["y", "c"]
    assert "c" in found.annotations.activations


def test_an_operand_is_no_weight() -> None:
    body = pair("x", "a") + "o = DequantizeLinear(oq, os, oz)\n y = Add(a, o)"
    arrays = {"oq": np.uint8([[[200]], [[3]], [[77]]]), "os": np.float32(0.1), "oz": np.uint8(7)}
    found = taken(model(body, "float[1,3,8,8] y", s=S, z=U8, **arrays))
    assert not found.annotations.weights
    assert list(found.annotations.constants.values()) == [
        Quantization(float(np.float32(0.1)), -121)
    ]


def test_a_weight_behind_a_transposition_is_a_weight() -> None:
    body = (
        pair("x", "a") + "f = Flatten(a)\n w = DequantizeLinear<axis=0>(k, ks, kz)\n"
        "t = Transpose<perm=[1,0]>(w)\n y = MatMul(f, t)"
    )
    stored = RANDOM.integers(-127, 128, (4, 192)).astype(np.int8)
    found = taken(model(body, "float[1,4] y", s=S, z=U8, k=stored, ks=CHANNELS, kz=ZEROS))
    assert [w.axis for w in found.annotations.weights.values()] == [0]


def test_the_scales_survive_the_clean_file(tmp_path: Any) -> None:
    """float32 scales come back bit for bit, and equal models give equal bytes."""
    scale = np.nextafter(np.float32(1 / 3), np.float32(1))
    found = taken(conv(pair("c", "y"), s=scale))
    raw, clean, again = (tmp_path / name for name in ("raw.onnx", "clean.onnx", "again.onnx"))
    onnx.save(found.proto, raw)
    clean_export(raw, clean, "net")
    clean_export(clean, again, "net")
    read = annotations_of(clean)
    assert read == found.annotations
    assert np.float32(read.activations["x"].scale) == scale
    assert clean.read_bytes() == again.read_bytes()
    assert annotations_of(onnx.load(clean)) == read


def test_annotations_of_a_value_that_is_gone() -> None:
    lost = Annotations({"nowhere": Quantization(1.0, 0)}, {}, {})
    with pytest.raises(SourceError, match="'nowhere' is annotated with a scale"):
        put_back(model("y = Relu(x)", "float[1,3,8,8] y"), lost)


def typed(array: Any, kind: int, name: str) -> Any:
    """A tensor of a type that NumPy does not have."""
    return onnx.helper.make_tensor(name, kind, np.shape(array), np.ravel(array).tolist())


REFUSED = [
    ("int16", conv(pair("c", "y"), z=np.int16(0)), "'x' is quantised to int16", "8 bits"),
    ("negative scale", conv(pair("c", "y"), s=np.float32(-0.1)), "scale of 'x' is -0.1", "floor"),
    ("no scale", conv(pair("c", "y"), ks=CHANNELS * 0), "scale of 'k' is 0; it must", "floor"),
    ("infinite", conv(pair("c", "y"), s=np.float32("inf")), "scale of 'x' is inf", "floor"),
    (
        "activation channels",
        conv("q = QuantizeLinear<axis=1>(c, ks, kz)\n y = DequantizeLinear<axis=1>(q, ks, kz)"),
        "activation 'c' has 4 scales along axis 1",
        "per tensor",
    ),
    (
        "asymmetric",
        conv(pair("c", "y"), kz=np.full(4, 20, np.int8)),
        "weight 'k' is asymmetric: with its zero point 20",
        "QInt8",
    ),
    (
        "two scales",
        conv(pair("c", "d") + pair("c", "e", "s2") + "y = Add(d, e)", s2=np.float32(0.5)),
        "'c' is quantised twice, with scale 0.0299999993 and zero point 0, and with 0.5",
        "one scale in TFLite",
    ),
    (
        "two ends",
        conv("q = QuantizeLinear(c, s, z)\n y = DequantizeLinear(q, s2, z)", s2=np.float32(0.5)),
        "'c' is quantised with scale 0.0299999993, zero point 128 (uint8) and read back with",
        "quantise again",
    ),
    (
        "integers read",
        conv("q = QuantizeLinear(c, s, z)\n r = Reshape(q, n)\n y = DequantizeLinear(r, s, z)",
             n=np.int64([1, 4, 6, 6])),
        "the integers of 'c' are read by Reshape",
        "before a runtime optimises it",
    ),
    (
        "integer output",
        conv("y = QuantizeLinear(c, s, z)", "uint8[1,4,6,6] y"),
        "the integers of 'c' are read by the caller",
        "QDQ format",
    ),
    (
        "computed scale",
        conv("t = ReduceMax<keepdims=0>(c)\n" + pair("c", "y", "t")),
        "the scale of 'c' is no constant (input 1 of QuantizeLinear",
        "fixed scales",
    ),
    (
        "dynamic",
        conv("q, t, v = DynamicQuantizeLinear(c)\n y = DequantizeLinear(q, t, v)"),
        "takes its scale from each sample",
        "quantise statically",
    ),
    (
        "integer form",
        model("y = ConvInteger(x, k)", "int32[1,4,6,6] y", k=KERNEL),
        "ConvInteger '' computes on integers",
        "QDQ format",
    ),
    (
        "contributed",
        model('q = com.microsoft.QuantizeLinear(x, s, z)\n y = Cast<to=1>(q)', s=S, z=U8),
        "is of domain com.microsoft",
        "UseQDQContribOps",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("proto", "message", "remedy"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_what_tflite_cannot_hold(proto: Any, message: str, remedy: str) -> None:
    with pytest.raises(SourceError) as caught:
        take_out(proto, "m.onnx")
    assert message in caught.value.message
    assert remedy in caught.value.hint
    assert caught.value.where == "m.onnx"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (onnx.TensorProto.INT4, "int4"),
        (onnx.TensorProto.UINT4, "uint4"),
        (onnx.TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
    ],
)
@pytest.mark.parametrize("what", ["activation", "weight"])
def test_narrow_types(kind: int, name: str, what: str) -> None:
    if what == "activation":
        proto = model(pair("x", "y"), "float[1,3,8,8] y", s=S)
        proto.graph.initializer.append(typed(np.zeros(()), kind, "z"))
        tensor = "x"
    else:
        proto = model("w = DequantizeLinear(k, s)\n y = Conv(x, w)", s=S)
        proto.graph.initializer.append(typed(np.ones((4, 3, 3, 3)), kind, "k"))
        tensor = "k"
    with pytest.raises(SourceError, match=f"'{tensor}' is quantised to {name}"):
        take_out(proto)


def test_blocks() -> None:
    body = "w = DequantizeLinear<axis=1, block_size=3>(k, s, z)\n y = Conv(x, w)"
    blocks = {"s": np.ones((4, 1, 3, 3), np.float32), "z": np.zeros((4, 1, 3, 3), np.int8)}
    with pytest.raises(SourceError, match="'k' has one scale for each block of 3"):
        take_out(model(body, k=KERNEL, **blocks))


def test_pairs_in_a_subgraph() -> None:
    proto = model("y = Relu(x)", "float[1,3,8,8] y", s=S, z=U8)
    inner = model(pair("x", "t"), "float[1,3,8,8] t").graph
    del inner.input[:]
    flag = onnx.numpy_helper.from_array(np.asarray(True), "flag")
    proto.graph.initializer.append(flag)
    branch = onnx.helper.make_node("If", ["flag"], ["u"], then_branch=inner, else_branch=inner)
    proto.graph.node.insert(0, branch)
    with pytest.raises(SourceError, match="lies in a subgraph"):
        take_out(proto)
