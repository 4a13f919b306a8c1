"""Kernels of several groups: their kinds, and estimates counted by hand."""

from __future__ import annotations

import onnx.parser
import pytest

from edgefuse.graph.cost import Balance, Cost, kernels
from edgefuse.graph.kernel import Group, Tile, estimate, group
from edgefuse.graph.shapes import spelt_out

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
MACHINE = Balance(
    launch_s=1e-6, bytes_per_s=1e9, flops_per_s=1e10, vector_flops_per_s=1e9, parallel_tiles=4
)


def groups(text: str) -> list[Group]:
    model = spelt_out(onnx.parser.parse_model(HEAD + text))
    return [group(name, nodes) for name, nodes in kernels(model).items()]


@pytest.mark.parametrize(
    ("inputs", "body", "kind"),
    [
        ("float[1,4,5,5] x, float[8,4,1,1] w", "y = Conv(x, w)", "projection"),
        ("float[1,4,5,5] x, float[8,4,1,1] w", "y = Conv <strides=[2,2]> (x, w)", "matrix"),
        ("float[1,4,5,5] x, float[8,4,1,1] w", "y = Conv <pads=[1,1,1,1]> (x, w)", "matrix"),
        ("float[1,4,5,5] x, float[8,2,1,1] w", "y = Conv <group=2> (x, w)", "matrix"),
        ("float[1,4,5,5] x, float[8,4,3,3] w", "y = Conv(x, w)", "matrix"),
        ("float[1,4,5,5] x, float[4,1,3,3] w", "y = Conv <group=4> (x, w)", "depthwise"),
        ("float[3,4] x, float[4,8] w", "y = MatMul(x, w)", "projection"),
        ("float[4] x, float[4,8] w", "y = MatMul(x, w)", "matrix"),
        ("float[3,4] x, float[4,8] w", "y = Gemm(x, w)", "projection"),
        ("float[4,3] x, float[4,8] w", "y = Gemm <transA=1> (x, w)", "matrix"),
        ("float[3,4] x", "y = Tanh(x)", "pointwise"),
        ("float[3,4] x, float[4] w", "y = LayerNormalization(x, w)", "rowwise"),
        ("float[3,4] x, float[3,4] w", "y = LayerNormalization <axis=0> (x, w)", "other"),
        ("float[3,4] x", "y = Softmax <axis=1> (x)", "rowwise"),
        ("float[3,4] x", "y = Softmax <axis=0> (x)", "other"),
        ("float[3,4] x", "y = Transpose(x)", "other"),
        ("float[1,4,5,5] x", "y = GlobalAveragePool(x)", "other"),
    ],
)
def test_kinds(inputs: str, body: str, kind: str) -> None:
    proto = onnx.parser.parse_model(f"{HEAD}({inputs}) => (float[?] y) {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = spelt_out(proto)
    (found,) = [group(name, nodes) for name, nodes in kernels(model).items()]
    assert found.kind == kind and found.result is not None and found.result.name == "y"
    assert (found.operand is not None) == (kind == "projection")


BLOCK = (
    "(float[1,128,16,16] x, float[128,1,3,3] d, float[160,128,1,1] p) => (float[1,160,16,16] y)"
    "{ h = Conv <group=128, pads=[1,1,1,1]> (x, d) y = Conv(h, p) }"
)
X, H, Y = 128 * 256 * 4, 128 * 256 * 4, 160 * 256 * 4
D, P = 128 * 9 * 4, 160 * 128 * 4
DEPTHWISE_FLOPS, PROJECTION_FLOPS = 2 * 128 * 256 * 9, 2 * 160 * 256 * 128


def test_two_groups_apart() -> None:
    depthwise, projection = groups(BLOCK)
    first, second = estimate(depthwise, {}, MACHINE), estimate(projection, {}, MACHINE)
    assert first.cost == Cost(1, X + D, H, vector_flops=DEPTHWISE_FLOPS)
    # 32,768 elements in tiles of 4,096.
    assert (first.columns, first.recompute, first.tiles) == (0, 1, 8)
    assert first.time_s == pytest.approx(1e-6 + DEPTHWISE_FLOPS / 1e9)
    assert second.cost == Cost(1, H + P, Y, matrix_flops=PROJECTION_FLOPS)
    # 4 tiles of 64 rows, 3 of 64 columns; nothing is computed on the way.
    assert (second.columns, second.recompute, second.tiles) == (64, 1, 12)
    assert second.time_s == pytest.approx(1e-6 + PROJECTION_FLOPS / 1e10)


def test_one_kernel_computes_its_operand_for_each_tile_of_columns() -> None:
    depthwise, projection = groups(BLOCK)
    narrow = Tile(widest_columns=64)
    found = estimate(projection, {depthwise: True}, MACHINE, narrow)
    again = Cost(1, X + D + P, Y, PROJECTION_FLOPS, 3 * DEPTHWISE_FLOPS)
    assert found.cost == again and (found.recompute, found.tiles) == (3, 12)
    # One tile of all 160 columns computes it once, and 4 tiles still fill 4 cores.
    wide = estimate(projection, {depthwise: True}, MACHINE)
    assert wide.cost.vector_flops == DEPTHWISE_FLOPS
    assert (wide.columns, wide.recompute, wide.tiles) == (160, 1, 4)
    # On 64 cores 4 tiles would leave 60 idle, 12 leave 52: less idle beats less work.
    many = Balance(1e-6, 1e9, 1e10, vector_flops_per_s=1e12, parallel_tiles=64)
    spread = estimate(projection, {depthwise: True}, many)
    assert (spread.columns, spread.recompute, spread.tiles) == (64, 3, 12)
    busy = 12 / 64
    work = max(spread.cost.memory_s(many), spread.cost.compute_s(many))
    assert spread.time_s == pytest.approx(1e-6 + work / busy)


def test_an_epilogue_is_computed_once() -> None:
    neg, conv, _ = groups(
        "(float[1,128,16,16] x, float[160,128,1,1] p, float[1,160,16,16] r)"
        " => (float[1,160,16,16] y) { s = Neg(r) c = Conv(x, p) y = Add(c, s) }"
    )
    assert estimate(conv, {neg: False}, MACHINE).cost.vector_flops == 160 * 256
    assert estimate(conv, {neg: False}, MACHINE).recompute == 1
