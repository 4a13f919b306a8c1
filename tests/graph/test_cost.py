"""The cost of kernels on small graphs, counted by hand, and the times that follow from it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from edgefuse.errors import StageError
from edgefuse.graph.cost import (
    Balance,
    Cost,
    kernel_cost,
    kernels,
    load_time,
    model_costs,
    model_time_s,
    total,
)
from edgefuse.graph.fuse import fuse_file
from edgefuse.graph.shapes import spelt_out

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
# 1x4x8x8 floats are 1,024 bytes; the weights 4*4*1*1*4 = 64, the bias 16.
CONV_RELU = (
    HEAD + "(float[1,4,8,8] x) => (float[1,4,8,8] y)"
    "<float[4,4,1,1] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float[4] b = {1,2,3,4}>"
    "{ c = Conv(x, w, b) y = Relu(c) }"
)
MACHINE = Balance(launch_s=1e-6, bytes_per_s=1e9, flops_per_s=1e10)


def costs(text: str, float_bytes: int | None = None) -> dict[str, Cost]:
    return model_costs(spelt_out(onnx.parser.parse_model(text)), float_bytes)


def test_two_kernels_and_one(tmp_path: Path) -> None:
    conv, relu = costs(CONV_RELU).values()
    assert conv == Cost(1, 1024 + 64 + 16, 1024, matrix_flops=2 * 256 * 4 + 256)
    assert relu == Cost(1, 1024, 1024, vector_flops=256)
    source, fused = tmp_path / "m.onnx", tmp_path / "f.onnx"
    onnx.save(onnx.parser.parse_model(CONV_RELU), source)
    fuse_file(source, fused, feeds=[{"x": np.ones((1, 4, 8, 8), np.float32)}])
    proto = onnx.load(fused)
    (name,) = [node.name for node in proto.graph.node]
    found = model_costs(spelt_out(proto))
    # The clamped result alone is written, and nothing between is read.
    assert found == {name: Cost(1, 1104, 1024, matrix_flops=2304, vector_flops=256)}


def test_half_precision_halves_the_bytes() -> None:
    conv, relu = costs(CONV_RELU, float_bytes=2).values()
    assert (conv.bytes_read, conv.bytes_written) == (552, 512)
    assert relu.bytes_moved == 1024 and relu.flops == 256


def test_time_and_what_bounds_it() -> None:
    cost = Cost(2, 3000, 1000, matrix_flops=20000, vector_flops=10000)
    assert cost.memory_s(MACHINE) == pytest.approx(4e-6)
    assert cost.compute_s(MACHINE) == pytest.approx(3e-6)
    assert cost.time_s(MACHINE) == pytest.approx(2e-6 + 4e-6)
    assert cost.time_s(MACHINE, share=0.5) == pytest.approx(2e-6 + 8e-6)
    assert cost.bound(MACHINE) == "memory" and not cost.is_compute_bound(MACHINE)
    slow = Balance(1e-6, 1e9, 1e10, vector_flops_per_s=1e9)
    assert cost.compute_s(slow) == pytest.approx(2e-6 + 10e-6)
    assert cost.bound(slow) == "compute" and cost.is_compute_bound(slow)
    assert cost.bound(Balance(1e-3, 1e9, 1e10)) == "launch"
    assert cost.arithmetic_intensity == 7.5 and MACHINE.flops_per_byte == 10
    assert Cost(1, matrix_flops=1).arithmetic_intensity == math.inf
    assert Cost(1).arithmetic_intensity == 0


def test_sums() -> None:
    one, other = Cost(1, 2, 3, 4, 5, ("LRN 'a'",)), Cost(1, 1, 1, 1, 1)
    assert total([one, other]) == Cost(2, 3, 4, 5, 6, ("LRN 'a'",)) and total([]) == Cost()
    both = [Cost(1, 1000, 0, 0), Cost(1, 0, 0, matrix_flops=10000)]
    # Each kernel waits for its own slower half: not the maximum of the sums.
    assert model_time_s(both, MACHINE) == pytest.approx(2e-6 + 1e-6 + 1e-6)
    assert total(both).time_s(MACHINE) == pytest.approx(2e-6 + 1e-6)
    assert Cost.to_json(one)["unknown"] == ["LRN 'a'"]


def test_views_cost_nothing_and_moves_cost_bytes() -> None:
    found = costs(
        HEAD + "(float[2,3,4] x) => (float[6,8] y)"
        "<int64[2] flat = {6,4}, int64[1] axis = {1}>"
        "{ t = Transpose <perm=[1,0,2]> (x) r = Reshape(t, flat) u = Unsqueeze(r, axis)"
        "  s = Squeeze(u, axis) i = Identity(s) y = Concat <axis=1> (i, i) }"
    )
    assert [(c.launches, c.bytes_read, c.bytes_written, c.flops) for c in found.values()] == [
        (1, 96, 96, 0),
        # Both halves are one tensor, read once.
        (1, 96, 192, 0),
    ]


def test_a_slice_reads_what_it_hands_out() -> None:
    (cut,) = costs(
        HEAD + "(float[100,8] x) => (float[2,8] y)<int64[1] a = {3}, int64[1] b = {5}>"
        "{ y = Slice(x, a, b) }"
    ).values()
    assert (cut.bytes_read, cut.bytes_written) == (64 + 8 + 8, 64)


def test_an_unknown_operator_costs_its_bytes_and_is_named() -> None:
    (lrn,) = costs(
        HEAD + "(float[1,4,2,2] x) => (float[1,4,2,2] y) { y = LRN <size=3> (x) }"
    ).values()
    assert (lrn.launches, lrn.bytes_moved, lrn.flops) == (1, 128, 0)
    assert len(lrn.unknown) == 1 and lrn.unknown[0].startswith("LRN '")


def test_what_is_computed_when_the_model_is_loaded() -> None:
    model = spelt_out(
        onnx.parser.parse_model(
            HEAD + "(float[2,4] x) => (float[2,4] y)<float[4] a = {1,2,3,4}, float one = {1}>"
            "{ s = Shape(x) e = ConstantOfShape(s) n = Neg(a) l = CastLike(one, x)"
            "  k = Mul(n, l) z = Add(x, k) y = Add(z, e) }"
        )
    )
    early = {node.op_type for node in load_time(model)}
    assert early == {"Shape", "ConstantOfShape", "Neg", "CastLike", "Mul"}
    assert [nodes[0].op_type for nodes in kernels(model).values()] == ["Add", "Add"]
    late = load_time(model, static_shapes=False)
    assert {node.op_type for node in late} == {"Neg", "CastLike", "Mul"}


def test_a_kernel_of_chosen_operators() -> None:
    model = spelt_out(
        onnx.parser.parse_model(
            HEAD + "(float[16] x) => (float[16] y, float[16] z)"
            "{ a = Relu(x) b = Neg(a) y = Abs(b) z = Exp(a) }"
        )
    )
    relu, neg, absolute, _ = model.graph
    # a is read outside, so it is written; b stays inside.
    assert kernel_cost([relu, neg, absolute]) == Cost(1, 64, 128, vector_flops=48)
    again = kernel_cost([relu, neg, absolute], inner=[relu], times=lambda n: 3 if n is relu else 1)
    assert again == Cost(1, 64, 64, vector_flops=16 * 5)


def test_no_machine_and_no_type() -> None:
    for wrong in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match="not a machine"):
            Balance(*wrong)
    with pytest.raises(ValueError, match="not a machine"):
        Balance(0, 1, 1, parallel_tiles=0)
    with pytest.raises(StageError, match="static shapes"):
        costs(HEAD + "(float[N] x) => (float[N] y) { y = Relu(x) }")
