"""Counting what ran: on inductor's source, optimised HLO, and graphs that onnxruntime wrote."""

from __future__ import annotations

import onnx

from edgefuse.compare.onnxruntime_rows import _fused
from edgefuse.compare.tensorflow_rows import _instructions
from edgefuse.compare.torch_rows import _kernels

WRAPPER = '''
cpp_fused_relu_add_1 = async_compile.cpp_pybinding(["float*"], r"""
    def call(self, args):
        cpp_fused_convolution_0(arg1_1, buf0)
        # Topologically Sorted Source Nodes: [a], Original ATen: [aten.convolution]
        buf2 = extern_kernels.convolution(buf0, buf1, stride=(2, 2))
        cpp_fused_add_relu_1(buf2)
        # Topologically Sorted Source Nodes: [a, b], Original ATen: [aten.add, aten.relu]
        buf3 = torch.ops.aten.max_pool.default(buf2)
        cpp_fused_add_relu_1(buf3)
'''
HLO = """HloModule m
%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %m = f32[4]{0} maximum(%p, %p)
}

ENTRY %main (arg0.1: f32[4]) -> (f32[4]) {
  %arg0.1 = f32[4]{0} parameter(0), metadata={op_name="XLA_Args"}
  %constant.1 = f32[] constant(0)
  %convolution.1 = f32[4]{0} convolution(%arg0.1, %constant.1), window={size=1}
  %fusion = f32[4]{0} fusion(%convolution.1), kind=kLoop, calls=%fused
  ROOT %tuple.1 = (f32[4]{0}) tuple(%fusion)
}
"""
GIVEN = """<ir_version: 9, opset_import: ["": 18]> g (float[1] x) => (float[1] y) {
    a = Conv(x, w) b = BatchNormalization(a, s, t, m, v) c = Relu(b) d = Add(c, x)
    y = BatchNormalization(d, s, t, m, v)
}"""
OPTIMISED = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1,
    "com.microsoft.nchwc": 1]> g (float[1] x) => (float[1] y) {
    a = com.microsoft.nchwc.Conv <activation = "Relu"> (x, w, b, x)
    e = com.microsoft.nchwc.Conv (a, w)
    f = com.microsoft.nchwc.ReorderOutput (e)
    h = com.microsoft.BiasGelu (f, b)
    y = BatchNormalization(h, s, t, m, v)
}"""


def test_kernels_of_inductor() -> None:
    """A copy into another layout is a kernel and no fusion."""
    assert _kernels(WRAPPER) == (5, 2)


def test_instructions_of_the_entry_alone() -> None:
    assert _instructions(HLO) == {"convolution": 1, "fusion": 1}


def test_fusions_of_onnxruntime() -> None:
    before, after = (list(onnx.parser.parse_graph(_graph(t)).node) for t in (GIVEN, OPTIMISED))
    found = _fused(before, after)
    assert {k: n for k, n in found.items() if n} == {
        "BatchNorm folded": 1,
        "activation fused": 1,
        "Add fused": 1,
        "BiasGelu": 1,
    }
    assert not any(_fused(before, before).values())


def _graph(model: str) -> str:
    return model[model.index("> g ") + 2 :]
