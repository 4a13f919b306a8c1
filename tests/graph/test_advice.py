from __future__ import annotations

import onnx
from passes.check_pass import onnx_model

from edgefuse.graph.advice import Advice, advise, outside
from edgefuse.graph.cost import Balance
from edgefuse.graph.shapes import spelt_out

#: 1 us a launch, 1 GB/s, 10 GFLOP/s: 10 FLOPs a byte are balance.
MACHINE = Balance(launch_s=1e-6, bytes_per_s=1e9, flops_per_s=1e10)


def remarks(proto: onnx.ModelProto, balance: Balance | None = MACHINE) -> dict[str, Advice]:
    return {remark.topic: remark for remark in advise(spelt_out(proto), balance)}


def layer(channels: int) -> onnx.ModelProto:
    return onnx_model(
        f"""g (float[1,{channels},32,32] x, float[{channels},{channels},3,3] w)
        => (float[1,{channels},30,30] y) {{ y = Conv(x, w) }}""",
        w=1,
    )


def test_a_layer_whose_arithmetic_takes_longer_than_its_bytes() -> None:
    found = remarks(layer(64))["compute_bound"]
    assert found.figures["kernels"] == 1 and found.figures["time_share"] == 1.0
    assert found.figures["balance_flops_per_byte"] == 10.0
    assert "compute_bound" not in remarks(layer(64), Balance(1e-6, 1e9, 1e14))


def test_a_tiny_model() -> None:
    chain = onnx_model("g (float[1,4] x) => (float[1,4] y) { a = Exp(x) y = Softmax(a) }")
    found = remarks(chain)["tiny"]
    assert found.figures["kernels"] == 2 and found.figures["launch_us"] == 2.0
    assert "tiny" not in remarks(layer(64))


def test_control_flow_and_random_operators() -> None:
    model = onnx_model(
        """g (float[1,4] x, bool c) => (float[1,4] y) {
        r = RandomNormalLike(x)
        a = Add(x, r)
        y = If (c) <then_branch = t () => (float[1,4] p) { p = Exp(a) },
                    else_branch = e () => (float[1,4] q) { q = Neg(a) }> }"""
    )
    topics = {remark.topic: remark for remark in advise(spelt_out(model), None)}
    assert topics["control_flow"].figures["operators"] == 1
    assert topics["random"].figures["operators"] == 1
    assert "the target has no balance" in topics["balance"].text


def test_attention_and_its_projections() -> None:
    model = onnx_model(
        """g (float[1,64,16] x, float[16,16] wq, float[16,16] wk, float[16,16] wv)
        => (float[1,64,16] y) {
        q = MatMul(x, wq)
        k = MatMul(x, wk)
        v = MatMul(x, wv)
        t = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul(q, t)
        p = Softmax(s)
        y = MatMul(p, v) }""",
        wq=1, wk=2, wv=3,
    )  # fmt: skip
    found = remarks(model)["attention"]
    assert found.figures["projections"] == 3 and found.figures["bytes_share"] > 0.5
    assert "attention" not in remarks(layer(8))


def test_time_that_is_not_in_the_model() -> None:
    (found,) = outside(model_ms=2.0, preprocess_ms=6.0, samples=8)
    assert "75% of the time is not in the model" in found.text
    assert outside(model_ms=6.0, preprocess_ms=2.0, samples=8) == []
