"""The steps that random graphs grow by: each adds nodes to a value and returns the new one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from graph.random_graphs import BOOL, Net, Step, volume

# Layers over channels: [N, C, ...].


def conv(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    groups = int(net.pick([1, 1, 1, 2 if c % 2 == 0 else 1, c]))
    out = c if groups == c else int(net.pick([c, c, 4, 6, 8])) // groups * groups or groups
    size = int(net.pick([1, 3, 3]))
    stride = 2 if size == 3 and min(extents) >= 6 and net.chance(0.2) else 1
    attributes: dict[str, Any] = {"group": groups, "strides": [stride] * len(extents)}
    if net.chance(0.1) and stride == 1:
        attributes["auto_pad"] = str(net.pick(["SAME_UPPER", "SAME_LOWER"]))
        after = list(extents)
    else:
        pads = [size // 2] * (2 * len(extents)) if min(extents) < 5 or net.chance(0.8) else []
        if size == 3 and pads and net.chance(0.15):
            pads = [0] * len(extents) + [2] * len(extents)
        attributes["pads"] = pads or [0] * (2 * len(extents))
        total = 2 * (size // 2) if pads else 0
        after = [(e + total - size) // stride + 1 for e in extents]
    inputs = [x, net.normal(out, c // groups, *[size] * len(extents), share=True,
                            fan_in=c // groups * size ** len(extents))]  # fmt: skip
    if net.chance(0.5):
        inputs.append(net.normal(out))
    return net.op("Conv", *inputs, shape=(n, out, *after), **attributes)


def deconv(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    groups = int(net.pick([1, 1, 2 if c % 2 == 0 else 1]))
    out = int(net.pick([c, 4, 6])) // groups * groups or groups
    stride = 2 if max(extents) <= 4 and len(extents) < 3 else 1
    size = 3
    weight = net.normal(c, out // groups, *[size] * len(extents), fan_in=c * 3 ** len(extents))
    bias = [net.normal(out)] if net.chance(0.5) else []
    after = [(e - 1) * stride + size - 2 for e in extents]
    return net.op("ConvTranspose", x, weight, *bias, shape=(n, out, *after), group=groups,
                  strides=[stride] * len(extents), pads=[1] * (2 * len(extents)))  # fmt: skip


def batch_norm(net: Net, x: str) -> str:
    c = net.shapes[x][1]
    gamma, beta, mean = net.const(net.away(c)), net.normal(c), net.normal(c)
    variance = net.const(net.random.uniform(0.5, 2.0, c))
    epsilon = float(net.pick([1e-5, 1e-3]))
    return net.op("BatchNormalization", x, gamma, beta, mean, variance, epsilon=epsilon)


def conv_batch_norm(net: Net, x: str) -> str:
    layer = deconv if net.chance(0.2) else conv
    y = batch_norm(net, layer(net, x))
    return activation(net, y) if net.chance(0.7) else y


def batch_norm_conv(net: Net, x: str) -> str:
    return conv(net, batch_norm(net, x))


def conv_scale(net: Net, x: str) -> str:
    return affine(net, conv(net, x))


def residual(net: Net, x: str) -> str:
    _, c, *extents = net.shapes[x]
    weight = net.normal(c, c, *[3] * len(extents), fan_in=c * 3 ** len(extents))
    y = net.op("Conv", x, weight, pads=[1] * (2 * len(extents)))
    y = batch_norm(net, y) if net.chance(0.5) else y
    y = activation(net, y) if net.chance(0.3) else y
    y = net.op("Add", *net.pick([(x, y), (y, x)]))
    return activation(net, y) if net.chance(0.6) else y


def pad_conv(net: Net, x: str) -> str:
    return conv(net, pad(net, x))


def pad(net: Net, x: str) -> str:
    shape = net.shapes[x]
    spatial = len(shape) - 2
    if net.chance(0.3):
        before, after = [1] * spatial, [1] * spatial
    else:
        before = [int(net.pick([0, 1])) for _ in range(spatial)]
        after = [int(net.pick([0, 1, 2])) for _ in range(spatial)]
    pads = net.ints(0, 0, *before, 0, 0, *after)
    mode = str(net.pick(["constant", "constant", "constant", "reflect", "edge"]))
    inputs = [x, pads]
    if mode == "constant" and net.chance(0.6):
        inputs.append(net.const(float(net.pick([0.0, 0.0, 1.5]))))
    grown = tuple(e + a + b for e, a, b in zip(shape[2:], before, after))
    return net.op("Pad", *inputs, shape=(*shape[:2], *grown), mode=mode)


def pool(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    x = pad(net, x) if net.chance(0.2) and max(extents) < 7 else x
    n, c, *extents = net.shapes[x]
    kind = str(net.pick(["MaxPool", "AveragePool"]))
    attributes: dict[str, Any] = {"kernel_shape": [3] * len(extents)}
    padded = net.chance(0.6) or min(extents) < 4
    if padded:
        attributes["pads"] = [1] * (2 * len(extents))
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(net.pick([0, 1]))
    after = [e if padded else e - 2 for e in extents]
    return net.op(kind, x, shape=(n, c, *after), **attributes)


def squeeze_excite(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    ones = [1] * len(extents)
    if net.chance(0.5):
        pooled = net.op("GlobalAveragePool", x, shape=(n, c, *ones))
    else:
        pooled = reduce(net, "ReduceMean", x, list(range(2, 2 + len(extents))), True)
    narrow = max(1, c // 2)
    y = net.op("Conv", pooled, net.normal(narrow, c, *ones, fan_in=c), net.normal(narrow),
               shape=(n, narrow, *ones))  # fmt: skip
    y = net.op("Relu", y)
    y = net.op("Conv", y, net.normal(c, narrow, *ones, fan_in=narrow), net.normal(c),
               shape=(n, c, *ones))  # fmt: skip
    gate = net.op(str(net.pick(["Sigmoid", "HardSigmoid"])), y)
    return net.op("Mul", *net.pick([(x, gate), (gate, x)]), shape=net.shapes[x])


def shuffle(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    if c % 2:
        return x
    y = reshape(net, x, (n, 2, c // 2, *extents))
    order = [0, 2, 1, *range(3, 3 + len(extents))]
    y = net.op("Transpose", y, perm=order, shape=(n, c // 2, 2, *extents))
    return reshape(net, y, (n, c, *extents))


def instance_norm(net: Net, x: str) -> str:
    shape = net.shapes[x]
    c = shape[1]
    if net.chance(0.5):
        return net.op("InstanceNormalization", x, net.const(net.away(c)), net.normal(c),
                      epsilon=1e-2)  # fmt: skip
    axes = list(range(2, len(shape)))
    y = normalised(net, x, axes)
    scale = net.const(net.away(c, *[1] * len(axes)))
    y = net.op("Mul", y, scale)
    return net.op("Add", y, net.normal(c, *[1] * len(axes)))


def group_norm(net: Net, x: str) -> str:
    n, c, *extents = net.shapes[x]
    if c % 2:
        return x
    y = reshape(net, x, (n, 2, -1))
    net.shapes[y] = (n, 2, c // 2 * volume(extents))
    y = net.op("InstanceNormalization", y, net.const([1.0, 1.0]), net.const([0.0, 0.0]),
               epsilon=1e-2)  # fmt: skip
    y = reshape(net, y, (n, c, *extents))
    y = net.op("Mul", y, net.const(net.away(c, *[1] * len(extents))))
    return net.op("Add", y, net.normal(c, *[1] * len(extents)))


def flatten(net: Net, x: str) -> str:
    n, *rest = net.shapes[x]
    wide = volume(rest)
    y = net.op("Flatten", x, axis=1, shape=(n, wide))
    out = int(net.pick([4, 6]))
    return net.op("Gemm", y, net.normal(out, wide, fan_in=wide), net.normal(out), transB=1,
                  shape=(n, out))  # fmt: skip


# Dense layers: the last axis.


def linear(net: Net, x: str) -> str:
    *before, width = net.shapes[x]
    out = int(net.pick([width, width, 4, 6, 8]))
    y = net.op("MatMul", x, net.normal(width, out, fan_in=width, share=True),
               shape=(*before, out))  # fmt: skip
    if net.chance(0.7):
        bias = net.const(net.random.normal(size=net.pick([(out,), (out,), (1, out), ()])))
        y = net.op("Add", *net.pick([(y, bias), (bias, y)]), shape=(*before, out))
    if len(before) == 1 and net.chance(0.3):
        y = batch_norm(net, y)
    return activation(net, y) if net.chance(0.5) else y


def gemm(net: Net, x: str) -> str:
    n, width = net.shapes[x]
    out = int(net.pick([width, 4, 6]))
    flipped = net.chance(0.5)
    weight = net.normal(*((out, width) if flipped else (width, out)), fan_in=width)
    inputs = [x, weight]
    if net.chance(0.7):
        inputs.append(net.const(net.random.normal(size=net.pick([(out,), (1, out), ()]))))
    attributes: dict[str, Any] = {"alpha": 0.5, "beta": 2.0} if net.chance(0.2) else {}
    y = net.op("Gemm", *inputs, transB=int(flipped), shape=(n, out), **attributes)
    y = batch_norm(net, y) if net.chance(0.4) else y
    y = affine(net, y) if net.chance(0.2) else y
    return activation(net, y) if net.chance(0.5) else y


def layer_norm(net: Net, x: str) -> str:
    width = net.shapes[x][-1]
    last = len(net.shapes[x]) - 1
    if net.opset >= 17 and net.chance(0.4):
        inputs = [x, net.const(net.away(width)), *([net.normal(width)] if net.chance(0.8) else [])]
        y = net.op("LayerNormalization", *inputs, axis=int(net.pick([-1, last])), epsilon=1e-3)
    else:
        y = normalised(net, x, [int(net.pick([-1, last]))])
        if net.chance(0.8):
            y = net.op("Mul", *net.pick([(y, s := net.const(net.away(width))), (y, s)]))
        if net.chance(0.8):
            y = net.op("Add", y, net.normal(width))
    return activation(net, y) if net.chance(0.3) else y


def normalised(net: Net, x: str, axes: list[int]) -> str:
    """(x - mean) / sqrt(variance + epsilon), as exporters spell it."""
    mean = reduce(net, "ReduceMean", x, axes, True)
    centred = net.op("Sub", x, mean)
    if net.chance(0.5):
        square = net.op("Pow", centred, net.const(2.0))
    else:
        square = net.op("Mul", centred, centred)
    variance = reduce(net, "ReduceMean", square, axes, True)
    root = net.op("Sqrt", net.op("Add", variance, net.const(float(net.pick([1e-3, 1e-2])))))
    if net.chance(0.3):
        return net.op("Mul", centred, net.op("Reciprocal", root))
    return net.op("Div", centred, root)


def rms_norm(net: Net, x: str) -> str:
    width = net.shapes[x][-1]
    mean = reduce(net, "ReduceMean", net.op("Mul", x, x), [-1], True)
    root = net.op("Sqrt", net.op("Add", mean, net.const(1e-3)))
    y = net.op("Mul", x, net.op("Reciprocal", root)) if net.chance(0.5) else net.op("Div", x, root)
    return net.op("Mul", net.const(net.away(width)), y, shape=net.shapes[x])


def attention(net: Net, x: str) -> str:
    n, t, width = net.shapes[x]
    heads = 2
    each = width // heads
    parts = []
    for _ in range(3):
        y = net.op("MatMul", x, net.normal(width, width, fan_in=width))
        y = net.op("Add", y, net.normal(width)) if net.chance(0.7) else y
        y = reshape(net, y, (n, t, heads, each))
        parts.append(net.op("Transpose", y, perm=[0, 2, 1, 3], shape=(n, heads, t, each)))
    q, k, v = parts
    if net.chance(0.5):
        q = net.op("Mul", q, net.const(1 / math.sqrt(each)))
    k = net.op("Transpose", k, perm=[0, 1, 3, 2], shape=(n, heads, each, t))
    scores = net.op("MatMul", q, k, shape=(n, heads, t, t))
    if net.chance(0.5):
        scores = net.op("Div", scores, net.const(math.sqrt(each)))
    if net.chance(0.4):
        mask = np.where(np.tril(np.ones((t, t))) > 0, 0.0, -1e4)
        scores = net.op("Add", scores, net.const(mask))
    weights = net.op("Softmax", scores, axis=-1 if net.opset >= 13 else 3)
    y = net.op("MatMul", weights, v, shape=(n, heads, t, each))
    y = net.op("Transpose", y, perm=[0, 2, 1, 3], shape=(n, t, heads, each))
    y = reshape(net, y, (n, t, width))
    y = net.op("MatMul", y, net.normal(width, width, fan_in=width))
    return net.op("Add", x, y) if net.chance(0.5) else y


# Pointwise.


def affine(net: Net, x: str) -> str:
    """One or two of Mul, Add, Sub, Div with a constant."""
    y = x
    for _ in range(int(net.pick([1, 1, 2]))):
        kind = str(net.pick(["Mul", "Add", "Sub", "Div"]))
        pair = (y, net.per_channel(y))
        if kind in ("Mul", "Add", "Sub") and net.chance(0.3):
            pair = (pair[1], pair[0])
        y = net.op(kind, *pair, shape=net.shapes[y])
    return y


def activation(net: Net, x: str) -> str:
    known = sorted(ACTIVATIONS) if net.dtype != "float64" else DOUBLE[net.opset < 12 :]
    return ACTIVATIONS[net.pick(known)](net, x)


def clip(net: Net, x: str) -> str:
    low, high = net.pick([(0.0, 6.0), (-1.0, 1.0), (0.0, None), (None, 0.5), (-0.3, 0.9)])
    inputs = [x, "" if low is None else net.const(low)]
    inputs += [] if high is None else [net.const(high)]
    return net.op("Clip", *inputs)


def max_min(net: Net, x: str) -> str:
    pairs = [("Max", 0.0), ("Min", 6.0)]
    for kind, bound in pairs if net.chance(0.7) else pairs[::-1]:
        y = net.const(bound)
        x = net.op(kind, *net.pick([(x, y), (y, x)]), shape=net.shapes[x])
    return x


def prelu(net: Net, x: str) -> str:
    shape = net.shapes[x]
    axis = len(shape) - 1 if net.tokens else 1
    tail = [1] * (len(shape) - 1 - axis)
    slope = net.random.uniform(0.1, 0.4, (shape[axis], *tail) if net.chance(0.7) else (1,))
    return net.op("PRelu", x, net.const(slope))


def silu(net: Net, x: str) -> str:
    scaled = net.op("Mul", x, net.const(1.702)) if net.chance(0.2) else x
    gate = net.op("Sigmoid", scaled)
    return net.op("Mul", *net.pick([(x, gate), (gate, x)]))


def hard_swish(net: Net, x: str) -> str:
    if net.opset >= 14 and net.dtype != "float64" and net.chance(0.3):
        return net.op("HardSwish", x)
    if net.chance(0.3):
        return net.op("Mul", x, net.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    y = net.op("Clip", net.op("Add", x, net.const(3.0)), net.const(0.0), net.const(6.0))
    if net.chance(0.5):
        return net.op("Div", net.op("Mul", x, y), net.const(6.0))
    return net.op("Mul", x, net.op("Mul", y, net.const(1 / 6)))


def gelu(net: Net, x: str) -> str:
    if net.opset >= 20 and net.dtype == "float32" and net.chance(0.3):
        return net.op("Gelu", x, approximate=str(net.pick(["none", "tanh"])))
    if net.dtype == "float64" or net.chance(0.4):
        cube = net.op("Pow", x, net.const(3.0))
        inner = net.op("Add", x, net.op("Mul", cube, net.const(0.044715)))
        inner = net.op("Tanh", net.op("Mul", inner, net.const(math.sqrt(2 / math.pi))))
    else:
        inner = net.op("Erf", net.op("Div", x, net.const(math.sqrt(2))))
    y = net.op("Add", inner, net.const(1.0))
    if net.chance(0.5):
        return net.op("Mul", net.op("Mul", x, y), net.const(0.5))
    return net.op("Mul", net.op("Mul", x, net.const(0.5)), y)


def mish(net: Net, x: str) -> str:
    if net.opset >= 18 and net.dtype == "float32" and net.chance(0.3):
        return net.op("Mish", x)
    return net.op("Mul", x, net.op("Tanh", net.op("Softplus", x)))


def one(kind: str, **attributes: Any) -> Step:
    return lambda net, x: net.op(kind, x, **attributes)


ACTIVATIONS: dict[str, Step] = {
    "celu": lambda net, x: net.op("Celu", x) if net.opset >= 12 and net.dtype == "float32"
    else net.op("Elu", x),
    "clip": clip,
    "elu": one("Elu"),
    "gelu": gelu,
    "hard_sigmoid": one("HardSigmoid", alpha=1 / 6, beta=0.5),
    "hard_swish": hard_swish,
    "leaky": one("LeakyRelu", alpha=0.1),
    "max_min": max_min,
    "mish": mish,
    "prelu": prelu,
    "relu": one("Relu"),
    "relu_min": lambda net, x: net.op("Min", net.op("Relu", x), net.const(6.0)),
    "selu": one("Selu"),
    "sigmoid": one("Sigmoid"),
    "silu": silu,
    "softplus": one("Softplus"),
    "softsign": one("Softsign"),
    "tanh": one("Tanh"),
}  # fmt: skip


# Those for which onnxruntime has a double kernel; Clip from opset 12 on.
DOUBLE = ("clip", "gelu", "max_min", "relu", "relu_min", "sigmoid", "silu", "tanh")


def chain(net: Net, x: str) -> str:
    """Pointwise operators with several inputs."""
    a = net.op("Tanh", x)
    b = affine(net, x) if net.chance(0.5) else net.op("Sigmoid", x)
    y = net.op(str(net.pick(["Add", "Sub", "Mul"])), a, b)
    y = net.op(str(net.pick(["Abs", "Neg", "Relu"])), y)
    return net.op("Sub", y, a) if net.chance(0.3) else y


def twice(net: Net, x: str) -> str:
    """The same thing computed twice."""
    kind = str(net.pick(["Relu", "Tanh", "Neg"]))
    return net.op("Add", net.op(kind, x), net.op(kind, x))


# Shapes and nothing at all.


def nothing(net: Net, x: str) -> str:
    shape = net.shapes[x]
    kind = int(net.pick(range(6)))
    if kind == 0:
        return net.op("Identity", x)
    if kind == 1:
        ratio = [net.const(0.5, "float32")] if net.opset >= 12 else []
        return net.op("Dropout", x, *ratio)
    if kind in (2, 3) and net.dtype == "float16":  # onnxruntime trips over its own Casts there
        return net.op("Identity", x)
    if kind == 2:
        return net.op("Cast", x, to=net.inputs["x"][0])
    if kind == 3 and net.dtype == "float32":
        # Never right before a branch: onnxruntime loses a value that comes from two Casts there.
        return net.op("Tanh", net.op("Cast", net.op("Cast", x, to=11), to=1))
    if kind == 4:
        return reshape(net, x, (0,) * len(shape), shape)
    pads = net.ints(*[0] * (2 * len(shape)))
    return net.op("Pad", x, pads)


def transposes(net: Net, x: str) -> str:
    """A pair that is nothing, with something between it or not."""
    shape = net.shapes[x]
    order = [0, *(1 + net.random.permutation(len(shape) - 1)).tolist()]
    back = np.argsort(order).tolist()
    y = net.op("Transpose", x, perm=order, shape=tuple(shape[i] for i in order))
    y = net.op(str(net.pick(["Relu", "Neg", "Tanh"])), y) if net.chance(0.5) else y
    return net.op("Transpose", y, perm=back, shape=shape)


def split_concat(net: Net, x: str) -> str:
    shape = net.shapes[x]
    axis = len(shape) - 1 if net.tokens else 1
    width = shape[axis]
    if width < 2:
        return x
    sizes = [width // 2, width - width // 2]
    if net.opset >= 13:
        left = net.op("Split", x, net.ints(*sizes), outputs=2, axis=axis)
    else:
        left = net.op("Split", x, outputs=2, axis=axis, split=sizes)
    parts = [left, f"{left}_1"]
    for name, size in zip(parts, sizes):
        net.shapes[name] = (*shape[:axis], size, *shape[axis + 1 :])
    if net.chance(0.5):
        parts[1] = net.op("Relu", parts[1])
    return net.op("Concat", *net.pick([parts, parts[::-1]]), axis=axis, shape=shape)


def shape_noise(net: Net, x: str) -> str:
    """A Reshape to a shape that is computed from the value's own shape."""
    shape = net.shapes[x]
    whole = net.op("Shape", x, shape=(len(shape),))
    first = net.op("Gather", whole, net.ints(0), axis=0, shape=(1,))
    rest = net.ints(*shape[1:])
    target = net.op("Concat", first, rest, axis=0, shape=(len(shape),))
    return net.op("Reshape", x, target, shape=shape)


def folded(net: Net, x: str) -> str:
    """A constant that is computed from constants."""
    base = net.per_channel(x)
    other = net.op(str(net.pick(["Neg", "Abs", "Tanh"])), base)
    return net.op("Add", x, net.op("Mul", base, other), shape=net.shapes[x])


def reshape(net: Net, x: str, to: tuple[int, ...], after: tuple[int, ...] | None = None) -> str:
    """The batch is copied from the input, so that it may be dynamic."""
    target = net.ints(0, *to[1:])
    return net.op("Reshape", x, target, shape=to if after is None else after)


def reduce(net: Net, kind: str, x: str, axes: list[int], keep: bool) -> str:
    shape = net.shapes[x]
    gone = {a % len(shape) for a in axes}
    after = tuple(1 if i in gone else e for i, e in enumerate(shape))
    if net.opset >= 18:
        return net.op(kind, x, net.ints(*axes), keepdims=int(keep), shape=after)
    return net.op(kind, x, axes=axes, keepdims=int(keep), shape=after)


# Subgraphs.


def branch(net: Net, x: str) -> str:
    """An If whose branches read x and weights from outside."""
    if "flag" not in net.inputs:
        net.input("flag", (), BOOL)
    graphs = [_body(net, x, f"b{net.count}_{side}_") for side in "te"]
    return net.op("If", "flag", shape=net.shapes[x], then_branch=graphs[0], else_branch=graphs[1])


def loop(net: Net, x: str) -> str:
    """A Loop of two rounds over a carried value."""
    scope = f"l{net.count}_"
    carried = f"{scope}v"
    net.shapes[carried] = net.shapes[x]
    body = _body(net, carried, scope)
    kind = net.inputs["x"][0]
    shape = list(net.shapes[x])
    alive = helper.make_node("Identity", [f"{scope}alive"], [f"{scope}still"])
    body.node.insert(0, alive)
    body.input.extend([
        helper.make_tensor_value_info(f"{scope}i", 7, []),
        helper.make_tensor_value_info(f"{scope}alive", BOOL, []),
        helper.make_tensor_value_info(carried, kind, [None, *shape[1:]]),
    ])  # fmt: skip
    body.output.insert(0, helper.make_tensor_value_info(f"{scope}still", BOOL, []))
    return net.op("Loop", net.ints_scalar(2), "", x, shape=net.shapes[x], body=body)


def _body(net: Net, x: str, scope: str) -> Any:
    """A graph that maps x to a value of its shape; its weights are its own or the outer graph's."""
    kept = net.nodes, net.constants, net.x, net.scope
    net.nodes, net.constants, net.scope = [], [], scope
    shape = net.shapes[x]
    y = residual(net, x) if not net.tokens and len(shape) > 2 else activation(net, x)
    y = activation(net, y)
    kind = net.inputs["x"][0]
    output = helper.make_tensor_value_info(y, kind, [None, *shape[1:]])
    graph = helper.make_graph(net.nodes, f"{scope}graph", [], [output], net.constants)
    net.nodes, net.constants, net.x, net.scope = kept
    return graph


ANY: tuple[Step, ...] = (
    activation, activation, activation, affine, affine, chain, folded, nothing, nothing,
    shape_noise, split_concat, transposes, twice, branch, loop,
)  # fmt: skip
SPATIAL: tuple[Step, ...] = (
    conv, conv, conv, deconv, batch_norm, batch_norm, conv_batch_norm, conv_batch_norm,
    batch_norm_conv, conv_scale, residual, residual, pad_conv, pool, squeeze_excite, shuffle,
    instance_norm, group_norm, flatten,
)  # fmt: skip
TOKENS: tuple[Step, ...] = (
    linear, linear, linear, layer_norm, layer_norm, rms_norm, attention, attention,
)  # fmt: skip
FLAT: tuple[Step, ...] = (gemm, gemm, gemm, linear, linear, batch_norm)


def of_rank(rank: int, tokens: bool) -> tuple[Step, ...]:
    """The steps that can follow a value of so many axes."""
    if tokens:
        return (*ANY, *TOKENS)
    return (*ANY, *FLAT) if rank == 2 else (*ANY, *SPATIAL)
