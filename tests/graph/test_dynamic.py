"""Which groups become one kernel: candidates, figures, and what is left alone."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from edgefuse.graph.cost import Balance
from edgefuse.graph.dynamic import (
    DEPTHWISE,
    DUPLICATED,
    PROLOGUE,
    Plan,
    one_group_a_kernel,
    plan_kernels,
)
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.shapes import at_shapes, spelt_out

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
# Launches are dear, everything else is cheap: whatever may be one kernel is.
LAUNCHES = Balance(launch_s=1.0, bytes_per_s=1e12, flops_per_s=1e12)
# A launch costs nothing, bytes do: only traffic decides.
TRAFFIC = Balance(launch_s=0.0, bytes_per_s=1e6, flops_per_s=1e15)
# A launch and bytes cost nothing: computing twice never pays.
FLOPS = Balance(launch_s=0.0, bytes_per_s=1e15, flops_per_s=1e6)
# Measured: bytes and matrix FLOPs. Assumed: 2 us a launch. From the data sheet: vector FLOPs (67
# TFLOP/s float32) and 132 multiprocessors.
H200 = Balance(2e-6, 4.3e12, 790e12, vector_flops_per_s=67e12, parallel_tiles=132)


def plan(text: str, balance: Balance, **more: Any) -> Plan:
    return plan_kernels(spelt_out(onnx.parser.parse_model(HEAD + text)), balance, **more)


def names(found: Plan) -> list[str]:
    """Kernels by the values their groups make: ``h+y``; nodes are called Op_value."""
    return ["+".join(n.split("_", 1)[1] for n in kernel) for kernel in found.kernels]


def block(batch: int, hidden: int, out: int, size: int, kernel: int) -> str:
    """A depthwise convolution and a projection."""
    extent, pads = f"{size},{size}", ",".join([str(kernel // 2)] * 4)
    return (
        f"(float[{batch},{hidden},{extent}] x, float[{hidden},1,{kernel},{kernel}] d,"
        f" float[{out},{hidden},1,1] p) => (float[{batch},{out},{extent}] y)"
        f"{{ h = Conv <group={hidden}, pads=[{pads}]> (x, d) y = Conv(h, p) }}"
    )


def test_depthwise_into_projection_by_hand() -> None:
    found = plan(block(1, 32, 16, 8, 3), LAUNCHES, bucket="batch 1")
    assert names(found) == ["h+y"] and found.bucket == "batch 1"
    x, h, y, weights = 32 * 64 * 4, 32 * 64 * 4, 16 * 64 * 4, (32 * 9 + 16 * 32) * 4
    assert found.before.bytes_moved == x + 2 * h + y + weights
    assert found.after.bytes_moved == x + y + weights
    assert (found.before.launches, found.after.launches) == (2, 1)
    assert found.before.flops == found.after.flops == 2 * 32 * 64 * 9 + 2 * 16 * 64 * 32
    assert found.before_us - found.after_us == pytest.approx(1e6, rel=1e-6)
    (decision,) = found.decisions
    assert decision.taken and decision.candidate == DEPTHWISE
    assert decision.producer == "Conv_h" and decision.readers == ("Conv_y",)
    assert decision.saved_us == pytest.approx(found.before_us - found.after_us)
    assert "saves 1e+06 us" in decision.reason


def test_recomputing_is_left_where_it_costs_more() -> None:
    # 640 columns are more than one tile may hold: ten tiles compute the depthwise part ten times.
    wide = block(1, 64, 640, 8, 3)
    assert names(plan(wide, FLOPS)) == ["h", "y"]
    (left,) = plan(wide, FLOPS).decisions
    depthwise = 2 * 64 * 64 * 9
    assert not left.taken and left.saved_us == pytest.approx(-9 * depthwise, rel=1e-3)
    assert "operand 10 times" in left.reason and "us more" in left.reason
    assert names(plan(wide, TRAFFIC)) == ["h+y"]


def test_too_few_tiles_are_left_apart() -> None:
    # The kernel has 16 tiles for 400 cores whatever its columns; the depthwise part has 1 more.
    slow = Balance(1e-9, 1e15, 1e12, vector_flops_per_s=1e9, parallel_tiles=400)
    found = plan(block(16, 256, 64, 8, 3), slow)
    assert names(found) == ["h", "y"] and found.before_us == found.after_us
    assert "tiles for 400 cores" in found.decisions[0].reason


def test_one_graph_two_batches_two_groupings() -> None:
    """The last 5x5 block of EfficientNet-Lite0 in half precision on an H200."""
    one = plan(block(1, 1152, 192, 7, 5), H200, float_bytes=2)
    many = plan(block(64, 1152, 192, 7, 5), H200, float_bytes=2)
    assert names(one) == ["h+y"] and names(many) == ["h", "y"]
    # At batch 1 a launch is most of the time; at batch 64 the repeated depthwise work is.
    assert one.decisions[0].saved_us > 0 > many.decisions[0].saved_us
    assert "operand 3 times" in many.decisions[0].reason


def test_a_normalisation_goes_into_the_product_behind_it() -> None:
    text = (
        "(float[8,32] x, float[32] s, float[32,64] w) => (float[8,64] y)"
        "{ n = LayerNormalization(x, s) y = MatMul(n, w) }"
    )
    found = plan(text, LAUNCHES)
    assert names(found) == ["n+y"] and found.decisions[0].candidate == PROLOGUE


def test_a_pointwise_result_of_two_readers_is_computed_in_both() -> None:
    text = (
        "(float[8,32] x, float[32,64] w) => (float[8,64] y, float[8,32] z)"
        "{ r = Relu(x) y = MatMul(r, w) z = Neg(r) }"
    )
    found = plan(text, TRAFFIC)
    assert names(found) == ["r+y", "r+z"] and found.decisions[0].candidate == DUPLICATED
    x, w, y = 8 * 32 * 4, 32 * 64 * 4, 8 * 64 * 4
    # Relu is neither written nor read twice; x is read twice instead of once.
    assert found.before.bytes_moved == (x + x) + (x + w + y) + (x + x)
    assert found.after.bytes_moved == (x + w + y) + (x + x)
    assert found.after.vector_flops == found.before.vector_flops + 8 * 32


def test_duplicating_is_left_where_inputs_outweigh_the_result() -> None:
    text = (
        "(float[64,64] a, float[64,64] b, float[64,64] c, float[64,64] d)"
        " => (float[64,64] y, float[64,64] z)"
        "{ s = Sum(a, b, c, d) y = Neg(s) z = Abs(s) }"
    )
    # Apart: 4 + 1, 1 + 1, 1 + 1 tensors; in both: 4 + 1, 4 + 1.
    assert names(plan(text, TRAFFIC)) == ["s", "y", "z"]
    assert names(plan(text, LAUNCHES)) == ["s+y", "s+z"]


def test_a_residual_is_computed_in_the_epilogue_once() -> None:
    text = (
        "(float[1,8,16,16] a, float[1,64,16,16] x, float[256,64,1,1] w, float[1,256,16,16] r)"
        " => (float[1,256,16,16] y) { n = Neg(r) c = Conv(x, w) y = Add(c, n) }"
    )
    model = spelt_out(onnx.parser.parse_model(HEAD + text))
    for node in list(model.graph)[1:]:
        node.metadata_props["edgefuse.kernel"] = "Group_y"
    found = plan_kernels(model, TRAFFIC)
    assert names(found) == ["n+y"]
    # 256 columns are 4 tiles, and still each element of the residual is computed once.
    assert found.after.vector_flops == found.before.vector_flops


def test_what_moved_once_moves_on() -> None:
    text = (
        "(float[8,32] x, float[32,64] w) => (float[8,64] y)"
        "{ a = Relu(x) b = Neg(a) y = MatMul(b, w) }"
    )
    found = plan(text, LAUNCHES)
    assert names(found) == ["a+b+y"] and len([d for d in found.decisions if d.taken]) == 2


@pytest.mark.parametrize(
    "text",
    [
        # An output of the model is written anyway.
        "(float[8,32] x, float[32,64] w) => (float[8,32] r, float[8,64] y)"
        "{ r = Relu(x) y = MatMul(r, w) }",
        # Read through a view.
        "(float[8,4,8] x, float[32,64] w) => (float[8,64] y)"
        "{ r = Relu(x) v = Flatten(r) y = MatMul(v, w) }",
        # Windows overlap: neighbouring tiles would compute the same elements.
        "(float[1,4,8,8] x, float[4,4,3,3] w) => (float[1,4,6,6] y) { r = Relu(x) y = Conv(r, w) }",
        # Along the width, not along the channels that the convolution sums over.
        "(float[1,4,8,8] x, float[8] s, float[4,4,1,1] w) => (float[1,4,8,8] y)"
        "{ n = LayerNormalization(x, s) y = Conv(n, w) }",
        # Both operands: rows of one, columns of the other.
        "(float[8,8] x) => (float[8,8] y) { r = Relu(x) y = MatMul(r, r) }",
        # A normalisation that two kernels need has statistics to compute twice.
        "(float[8,8] x, float[8] s, float[8,8] w) => (float[8,8] y, float[8,8] z)"
        "{ n = LayerNormalization(x, s) y = MatMul(n, w) z = Neg(n) }",
        # A depthwise convolution with another reader.
        "(float[1,4,8,8] x, float[4,1,1,1] d, float[4,4,1,1] w)"
        " => (float[1,4,8,8] y, float[1,4,8,8] z)"
        "{ h = Conv <group=4> (x, d) y = Conv(h, w) z = Neg(h) }",
        # A broadcast result would be computed once a row.
        "(float[1,8] x, float[4,8] z) => (float[4,8] y) { r = Relu(x) y = Add(r, z) }",
    ],
)
def test_left_alone(text: str) -> None:
    found = plan(text, LAUNCHES)
    assert all(len(kernel) == 1 for kernel in found.kernels) and found.decisions == ()


def test_equal_inputs_give_equal_plans_as_json() -> None:
    text = block(1, 32, 16, 8, 3)
    first, second = (json.dumps(plan(text, H200).to_json(), allow_nan=False) for _ in range(2))
    assert first == second
    shown = json.loads(first)
    assert shown["kernels"] == [["Conv_h", "Conv_y"]] and shown["after"]["launches"] == 1
    assert set(shown["decisions"][0]) == {
        *("candidate", "producer", "readers", "taken", "saved_us", "reason"),
    }


def test_without_a_balance_nothing_is_chosen() -> None:
    model = spelt_out(onnx.parser.parse_model(HEAD + block(1, 32, 16, 8, 3)))
    found = one_group_a_kernel(model, bucket="batch 1")
    assert names(found) == ["h", "y"] and found.before == found.after
    assert found.before.launches == 2 and found.decisions == ()


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """EfficientNet-Lite0 of the zoo at batch 1, fused; by the quick, older exporter."""
    import onnx_ir as ir
    import torch

    from edgefuse.zoo.efficientnet_lite0 import efficientnet_lite0

    path: Path = tmp_path_factory.mktemp("zoo") / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            efficientnet_lite0().eval(),
            (torch.zeros(1, 3, 224, 224),),
            str(path),
            dynamo=False,
            input_names=["image"],
            opset_version=18,
        )
    model = prepare(onnx.load(path))
    run_passes(model)
    return ir.serde.serialize_model(model)


def test_a_whole_model_has_other_kernels_at_another_batch(efficientnet: onnx.ModelProto) -> None:
    plans = {}
    for batch in (1, 64):
        model = at_shapes(efficientnet, {"image": (batch, 3, 224, 224)}).model
        plans[batch] = plan_kernels(model, H200, bucket=f"batch {batch}", float_bytes=2)
    one, many = plans[1], plans[64]
    assert one.kernels != many.kernels
    assert one.after_us < one.before_us and many.after_us < many.before_us
    left = {b: {d.producer for d in p.decisions if not d.taken} for b, p in plans.items()}
    assert left[1] and left[64] and not left[1] & left[64]
    for found in plans.values():
        assert {d.candidate for d in found.decisions} == {DEPTHWISE}
        # 16 blocks; every group is in exactly one kernel, and none is lost.
        assert len(found.decisions) == 16
        held = sorted(name for kernel in found.kernels for name in kernel)
        assert len(held) == len(set(held)) == found.before.launches
        assert found.before.flops <= found.after.flops
        for decision in found.decisions:
            assert decision.taken == (decision.saved_us > 0)
            assert ("saves" if decision.taken else "us more") in decision.reason
    # Alone on its cores at batch 1; computed again for each tile of columns at batch 64.
    reasons = {b: [d.reason for d in p.decisions if not d.taken] for b, p in plans.items()}
    assert all("tiles for 132 cores" in reason for reason in reasons[1])
    assert all(" times)" in reason and "tiles for" not in reason for reason in reasons[64])
