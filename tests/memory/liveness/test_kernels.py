"""What kernels of several operators do to the peak."""

from __future__ import annotations

import onnx_ir as ir

from edgefuse.graph.cost import Balance
from edgefuse.graph.dynamic import plan_kernels
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.shapes import spell_out
from edgefuse.memory.liveness.kernels import (
    GroupPeak,
    kernel_steps,
    peak_of_kernels,
    refuse_rising,
    rising_groups,
)

from ..onnx_text import RESIDUAL, model


def spelt(text: str) -> ir.Model:
    graph = model(text)
    run_passes(graph)
    spell_out(graph)
    return graph


def test_kernels_of_a_plan() -> None:
    """A kernel of two groups stands where the last one stood; what is inside is not there."""
    graph = spelt(RESIDUAL)
    names = [step.nodes[0].metadata_props["edgefuse.kernel"] for step in kernel_steps(graph)]
    assert len(names) == 2
    whole = kernel_steps(graph, [tuple(names)])
    assert len(whole) == 1
    assert [v.name for v in whole[0].makes] == ["y"]
    assert peak_of_kernels(graph, [tuple(names)]) == 2 * 576
    assert peak_of_kernels(graph) == 3 * 576
    # Computed by the second kernel too: handed out by neither but the one that ends with it.
    twice = kernel_steps(graph, [(names[0],), tuple(names)])
    assert [[str(v.name) for v in step.makes] for step in twice] == [["b"], ["y"]]


def test_a_group_that_raises_the_peak_is_named() -> None:
    """Fused at its last member, a group keeps the wide operand of its first one alive."""
    graph = model(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <int64[1] axes = {1}> {
        p = Concat<axis = 1>(x, x, x, x)
        q = ReduceMax<keepdims = 1>(p, axes)
        r = Softmax(x)
        y = Mul(r, q) }"""
    )
    assert rising_groups(graph) == ()
    for node in graph.graph:
        if node.op_type in ("ReduceMax", "Mul"):
            node.metadata_props["edgefuse.kernel"] = "both"
    (found,) = rising_groups(graph)
    # x, p, r and y against x, p and q.
    assert found == GroupPeak("both", (1 + 4 + 1 + 1) * 1024, (1 + 4) * 1024 + 256)
    assert found.bytes_with == peak_of_kernels(graph)
    assert f"from {found.bytes_without} to {found.bytes_with}" in found.reason
    assert rising_groups(spelt(RESIDUAL)) == ()


def test_fusion_that_would_raise_the_peak_is_refused() -> None:
    """The Add in the MatMul saves a launch, but keeps a and b alive beside the wide result."""
    text = """g (float[64,64] x, float[64,64] z, float[64,256] w) => (float[64,256] y) {
        a = Softmax(x)
        b = Softmax(z)
        p = Add(a, b)
        y = MatMul(p, w) }"""
    launches = Balance(launch_s=1.0, bytes_per_s=1e12, flops_per_s=1e12)
    graph = model(text)
    assert ("Add_p", "MatMul_y") in plan_kernels(graph, launches).kernels
    judged = plan_kernels(graph, launches, refuse=refuse_rising(graph))
    assert len(judged.kernels) == 4
    (decision,) = judged.decisions
    assert decision.saved_us > 0 and not decision.taken
    together = peak_of_kernels(graph, [("Softmax_a",), ("Softmax_b",), ("Add_p", "MatMul_y")])
    apart = peak_of_kernels(graph)
    # x, z and w stay; a, b and y, against p and y.
    assert together - apart == 64 * 64 * 4
    assert decision.reason.endswith(
        f"refused: raises the peak of live bytes from {apart} to {together}"
    )
    narrow = model(text.replace("256", "64"))
    assert len(plan_kernels(narrow, launches, refuse=refuse_rising(narrow)).kernels) == 3
