"""Blocks of the supported networks as ONNX text, unfused, as exporters write them."""

from __future__ import annotations

from collections.abc import Mapping

INVERTED_RESIDUAL = """
(float[2, 8, 10, 12] x, float[48, 8, 1, 1] w1, float[48] b1, float[48, 1, 3, 3] w2, float[48] b2,
 float[8, 48, 1, 1] w3, float[8] b3, float[48, 1, 3, 3] w4, float[48] b4, float[16, 48, 1, 1] w5,
 float[16] b5) => (float[2, 16, 5, 6] y)
<float low = {0.0}, float high = {6.0}>
{
  c1 = Conv(x, w1, b1)
  a1 = Clip(c1, low, high)
  c2 = Conv<group = 48, pads = [1, 1, 1, 1]>(a1, w2, b2)
  a2 = Clip(c2, low, high)
  c3 = Conv(a2, w3, b3)
  r = Add(x, c3)
  c4 = Conv(r, w1, b1)
  a4 = Clip(c4, low, high)
  c5 = Conv<group = 48, pads = [1, 1, 1, 1], strides = [2, 2]>(a4, w4, b4)
  a5 = Clip(c5, low, high)
  y = Conv(a5, w5, b5)
}
"""

SQUEEZE_EXCITE = """
(float[2, 16, 8, 8] x, float[64, 16, 1, 1] w1, float[64] b1, float[64, 1, 5, 5] w2, float[64] b2,
 float[16, 64, 1, 1] w3, float[16] b3, float[64, 16, 1, 1] w4, float[64] b4,
 float[24, 64, 1, 1] w5, float[24] b5) => (float[2, 24, 4, 4] y)
{
  c1 = Conv(x, w1, b1)
  a1 = HardSwish(c1)
  c2 = Conv<group = 64, pads = [2, 2, 2, 2], strides = [2, 2]>(a1, w2, b2)
  a2 = HardSwish(c2)
  g = GlobalAveragePool(a2)
  c3 = Conv(g, w3, b3)
  a3 = Relu(c3)
  c4 = Conv(a3, w4, b4)
  s = HardSigmoid<alpha = 0.16666667>(c4)
  m = Mul(a2, s)
  y = Conv(m, w5, b5)
}
"""

LITE = """
(float[1, 3, 17, 19] x, float[16, 3, 3, 3] w0, float[16] b0, float[16, 1, 5, 5] w2, float[16] b2,
 float[16, 16, 1, 1] w3, float[16] b3, float[10, 16] w4, float[10] b4) => (float[1, 10] y)
<float low = {0.0}, float high = {6.0}>
{
  c0 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w0, b0)
  a0 = Clip(c0, low, high)
  c2 = Conv<group = 16, pads = [2, 2, 2, 2]>(a0, w2, b2)
  a2 = Clip(c2, low, high)
  c3 = Conv(a2, w3, b3)
  r = Add(c3, a0)
  p = GlobalAveragePool(r)
  f = Flatten(p)
  y = Gemm<transB = 1>(f, w4, b4)
}
"""

RESIDUAL = """
(float[1, 3, 20, 24] x, float[16, 3, 7, 7] w0, float[16] b0, float[16, 16, 1, 1] w1, float[16] b1,
 float[16, 16, 3, 3] w2, float[16] b2, float[32, 16, 1, 1] w3, float[32] b3,
 float[32, 16, 1, 1] w4, float[32] b4) => (float[1, 32, 3, 3] y)
{
  c0 = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w0, b0)
  a0 = Relu(c0)
  p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(a0)
  c1 = Conv(p, w1, b1)
  a1 = Relu(c1)
  c2 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a1, w2, b2)
  a2 = Relu(c2)
  c3 = Conv(a2, w3, b3)
  d = Conv<strides = [2, 2]>(p, w4, b4)
  s = Add(c3, d)
  y = Relu(s)
}
"""

CONVNEXT = """
(float[2, 16, 6, 7] x, float[16, 1, 7, 7] w0, float[16] b0, float[16] s0, float[16] t0,
 float[16, 64] w1, float[64] b1, float[64, 16] w2, float[16] b2, float[16, 1, 1] g)
 => (float[2, 16, 6, 7] y)
<float half = {0.5}, float one = {1.0}, float root = {1.4142135}>
{
  c = Conv<group = 16, pads = [3, 3, 3, 3]>(x, w0, b0)
  t = Transpose<perm = [0, 2, 3, 1]>(c)
  n = LayerNormalization<axis = -1, epsilon = 0.000001>(t, s0, t0)
  m1 = MatMul(n, w1)
  h1 = Add(m1, b1)
  q = Div(h1, root)
  e = Erf(q)
  e1 = Add(e, one)
  h2 = Mul(h1, e1)
  h3 = Mul(h2, half)
  m2 = MatMul(h3, w2)
  h4 = Add(m2, b2)
  u = Transpose<perm = [0, 3, 1, 2]>(h4)
  v = Mul(u, g)
  y = Add(v, x)
}
"""

VIT = """
(float[2, 17, 32] x, float[32] s0, float[32] t0, float[32, 32] wq, float[32] bq,
 float[32, 32] wk, float[32] bk, float[32, 32] wv, float[32] bv, float[32, 32] wo, float[32] bo,
 float[32] s1, float[32] t1, float[32, 64] w1, float[64] b1, float[64, 32] w2, float[32] b2)
 => (float[2, 17, 32] y)
<int64[4] heads = {2, 17, 4, 8}, int64[3] flat = {2, 17, 32}, float scale = {0.35355338}>
{
  n = LayerNormalization<axis = -1>(x, s0, t0)
  q0 = MatMul(n, wq)
  q1 = Add(q0, bq)
  q2 = Reshape(q1, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q2)
  k0 = MatMul(n, wk)
  k1 = Add(k0, bk)
  k2 = Reshape(k1, heads)
  k = Transpose<perm = [0, 2, 3, 1]>(k2)
  v0 = MatMul(n, wv)
  v1 = Add(v0, bv)
  v2 = Reshape(v1, heads)
  v = Transpose<perm = [0, 2, 1, 3]>(v2)
  a0 = MatMul(q, k)
  a1 = Mul(a0, scale)
  a2 = Softmax<axis = -1>(a1)
  o0 = MatMul(a2, v)
  o1 = Transpose<perm = [0, 2, 1, 3]>(o0)
  o2 = Reshape(o1, flat)
  o3 = MatMul(o2, wo)
  o4 = Add(o3, bo)
  r = Add(o4, x)
  l = LayerNormalization<axis = -1>(r, s1, t1)
  m1 = MatMul(l, w1)
  h1 = Add(m1, b1)
  h2 = Gelu(h1)
  m2 = MatMul(h2, w2)
  h3 = Add(m2, b2)
  y = Add(r, h3)
}
"""

BLOCKS: Mapping[str, str] = {
    "mobilenet_v2": INVERTED_RESIDUAL,
    "mobilenet_v3": SQUEEZE_EXCITE,
    "efficientnet_lite": LITE,
    "resnet": RESIDUAL,
    "convnext": CONVNEXT,
    "vit": VIT,
}
