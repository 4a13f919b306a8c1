"""The launches that tests of kernels run: shapes that fill tiles, and shapes that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuda.kernels.single import Kernel, Shape
from edgefuse.cuda.steps import Step

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "pad_value": 0}
RELU6 = Step("clip", ("%0",), (0.0, 6.0))
BIAS = Step("add", ("acc", "b"))
HARD_SWISH = Step("hard_swish", ("%0",))


def requantized(zero: float = -7.0) -> list[Step]:
    """Bias and requantisation, as int8 launches end."""
    return [BIAS, Step("requantize", ("%0", "m"), (zero, -128.0, 127.0))]


def window(strides: Shape, pads: Shape, dilations: Shape = (1, 1)) -> dict[str, object]:
    return {"strides": strides, "pads": pads, "dilations": dilations, "pad_value": 0}


MATRIX: Sequence[Kernel] = (
    Kernel(
        "conv1x1", {"x": (2, 7, 7, 48)}, (2, 7, 7, 24), {"w": (48, 24)},
        epilogue=[BIAS, Step("add", ("%0", "r"))], vectors={"b": (24,)},
        beside={"r": (2, 7, 7, 24)}, label="residual",
    ),
    Kernel(
        "conv1x1", {"x": (2, 5, 5, 40)}, (2, 5, 5, 20), {"w": (40, 20)},
        inner=[Step("mul", ("acc", "g"))], epilogue=[BIAS, RELU6],
        vectors={"b": (20,)}, beside={"g": (2, 1, 1, 40)}, label="gate",
    ),
    Kernel(
        "gemm", {"x": (3, 2600)}, (3, 10), {"w": (2600, 10)}, epilogue=[BIAS], vectors={"b": (10,)},
        label="deep",
    ),
    Kernel(
        "gemm", {"x": (2, 17, 64)}, (2, 17, 96), {"w": (64, 96)},
        epilogue=[BIAS, Step("gelu", ("%0",))], vectors={"b": (96,)}, label="tokens",
    ),
    Kernel(
        "conv", {"x": (2, 3, 17, 17)}, (2, 9, 9, 16), {"w": (3, 3, 3, 16)},
        {**window((2, 2), (1, 1, 1, 1)), "layout": "NCHW"}, epilogue=[BIAS, HARD_SWISH],
        vectors={"b": (16,)}, label="stem",
    ),
    Kernel(
        "conv", {"x": (1, 8, 9, 24)}, (1, 8, 9, 40), {"w": (3, 3, 24, 40)},
        {**WINDOW, "layout": "NHWC"}, epilogue=[BIAS], vectors={"b": (40,)}, label="dense",
    ),
    Kernel(
        "conv", {"x": (1, 8, 8, 12)}, (1, 2, 2, 32), {"w": (4, 4, 12, 32)},
        {**window((4, 4), (0, 0, 0, 0)), "layout": "NHWC"}, epilogue=[BIAS], vectors={"b": (32,)},
        label="patches",
    ),
    Kernel(
        "depthwise_project", {"x": (1, 14, 14, 72)}, (1, 7, 7, 24),
        {"d": (3, 3, 72), "w": (72, 24)}, window((2, 2), (1, 1, 1, 1)),
        inner=[Step("add", ("acc", "c")), RELU6], epilogue=[BIAS],
        vectors={"b": (24,), "c": (72,)}, label="strided",
    ),
    Kernel(
        "depthwise_project", {"x": (2, 6, 6, 96)}, (2, 6, 6, 16),
        {"d": (5, 5, 96), "w": (96, 16)}, window((1, 1), (2, 2, 2, 2)),
        inner=[Step("add", ("acc", "c")), HARD_SWISH],
        epilogue=[BIAS, Step("add", ("%0", "r"))],
        vectors={"b": (16,), "c": (96,)}, beside={"r": (2, 6, 6, 16)}, label="residual",
    ),
)  # fmt: skip

WINDOWS: Sequence[Kernel] = (
    Kernel(
        "depthwise", {"x": (2, 11, 9, 24)}, (2, 6, 5, 24), {"w": (3, 3, 24)},
        window((2, 2), (1, 1, 1, 1)), epilogue=[BIAS, RELU6], vectors={"b": (24,)}, label="strided",
    ),
    Kernel(
        "depthwise", {"x": (1, 9, 9, 20)}, (1, 9, 9, 20), {"w": (7, 7, 20)},
        window((1, 1), (3, 3, 3, 3)), epilogue=[BIAS], vectors={"b": (20,)}, label="7x7",
    ),
    Kernel(
        "depthwise", {"x": (1, 12, 12, 16)}, (1, 12, 12, 16), {"w": (3, 3, 16)},
        window((1, 1), (2, 2, 2, 2), (2, 2)), epilogue=[BIAS, Step("silu", ("%0",))],
        vectors={"b": (16,)}, label="dilated",
    ),
)  # fmt: skip

POOLS: Sequence[Kernel] = tuple(
    Kernel(
        "pool", {"x": (1, 9, 9, 20)}, (1, 5, 5, 20),
        attributes={
            "kind": kind, "window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1),
            "count_padding": counted, "pad_value": 0,
        },
        label=f"{kind} {counted}",
    )
    for kind, counted in (("max", 0), ("average", 0), ("average", 1))
)  # fmt: skip

REDUCTIONS: Sequence[Kernel] = tuple(
    Kernel(
        "reduce", {"x": shape}, output, attributes={"kind": kind, "sizes": sizes},
        label=f"{kind} {sizes}",
    )
    for kind, shape, output, sizes in (
        ("mean", (2, 5, 5, 40), (2, 1, 1, 40), (2, 25, 40)),
        ("sum", (6, 33), (6,), (6, 33, 1)),
        ("max", (6, 33), (6,), (6, 33, 1)),
        ("min", (2, 3, 7), (2, 7), (2, 3, 7)),
        ("sum_square", (6, 4000), (6,), (6, 4000, 1)),
    )
)  # fmt: skip

ROWS: Sequence[Kernel] = (
    Kernel(
        "norm", {"x": (3, 5, 96)}, (3, 5, 96), {"s": (96,), "t": (96,)},
        {"kind": "layer", "epsilon": 1e-6}, epilogue=[Step("gelu")], float_weights=True,
        label="layer",
    ),
    Kernel(
        "norm", {"x": (7, 64)}, (7, 64), {"s": (64,)}, {"kind": "rms", "epsilon": 1e-5},
        float_weights=True, label="rms",
    ),
    Kernel("softmax", {"x": (2, 4, 50)}, (2, 4, 50), label="softmax"),
    Kernel(
        "attention", {"q": (2, 17, 3, 32), "k": (2, 19, 3, 32), "v": (2, 19, 3, 24)},
        (2, 17, 3, 24),
        attributes={
            "sizes": (2, 3, 17, 19, 32, 24), "scale": 32**-0.5,
            "views": (
                (0, (17 * 96, 32, 96, 1)), (0, (19 * 96, 32, 96, 1)), (0, (19 * 72, 24, 72, 1)),
            ),
        },
        label="heads",
    ),
)  # fmt: skip

POINTWISE: Sequence[Kernel] = (
    Kernel(
        "pointwise", {"x": (2, 5, 6, 24)}, (2, 24, 5, 6),
        attributes={"shape": (2, 24, 5, 6), "views": ((0, (720, 1, 144, 24)),)}, label="to NCHW",
    ),
    Kernel(
        "pointwise", {"x": (2, 8, 40), "z": (40,)}, (2, 8, 40),
        attributes={"shape": (2, 8, 40), "views": ((0, (320, 40, 1)), (0, (0, 0, 1)))},
        epilogue=[Step("mul", ("$0", "$1")), Step("tanh", ("%0",)), Step("sub", ("%1", "b"))],
        vectors={"b": (8, 1)}, label="chain",
    ),
    Kernel(
        "pointwise", {"x": (4, 6, 10)}, (4, 3, 5),
        attributes={"shape": (4, 3, 5), "views": ((11, (60, 20, 2)),)}, label="slice",
    ),
)  # fmt: skip

CONCAT: Sequence[Kernel] = (
    Kernel(
        "concat", {"p": (2, 3, 8), "q": (2, 5, 8), "s": (8,)}, (2, 9, 8),
        attributes={
            "sizes": (2, 8), "extents": (3, 5, 1),
            "views": ((0, (24, 8, 1)), (0, (40, 8, 1)), (0, (0, 0, 1))),
        },
    ),
)  # fmt: skip

FLOATS = (*MATRIX, *WINDOWS, *POOLS, *REDUCTIONS, *ROWS, *POINTWISE, *CONCAT)


def _in_integers(kernel: Kernel) -> Kernel:
    """The same launch in int8: bias, multiplier and requantisation in place of its steps."""
    columns = kernel.output[-1:]
    attributes = dict(kernel.attributes)
    if "pad_value" in attributes:
        attributes["pad_value"] = -5
    inner: Sequence[Step] = ()
    vectors = {"b": columns, "m": columns}
    if kernel.name == "depthwise_project":
        middle = dict(kernel.weights)["w"][:1]
        inner = [
            Step("add", ("acc", "c")),
            Step("requantize", ("%0", "mc"), (-128.0, -128.0, 127.0)),
        ]
        vectors |= {"c": middle, "mc": middle}
    beside = {k: v for k, v in dict(kernel.beside).items() if k == "r"}
    epilogue = requantized()
    if beside:
        constants = (-7.0, 0.61, 4.0, 0.47, -3.0, -128.0, 127.0)
        epilogue.append(Step("requantize_add", ("%1", "r"), constants))
    return replace(
        kernel,
        attributes=attributes,
        inner=inner,
        epilogue=epilogue,
        vectors=vectors,
        beside=beside,
        label=f"{kernel.label} int8",
    )


INTEGERS = (
    *(_in_integers(k) for k in (*MATRIX, *WINDOWS)),
    _in_integers(POOLS[2]),
    replace(POOLS[0], label="max int8"),
    _in_integers(REDUCTIONS[0]),
    replace(POINTWISE[0], label="to NCHW int8"),
    replace(CONCAT[0], label="int8"),
    replace(
        POINTWISE[2],
        epilogue=[
            Step("dequantize", ("acc",), (0.02, 3.0)),
            Step("tanh", ("%0",)),
            Step("quantize", ("%1",), (127.0, 0.0, -128.0, 127.0)),
        ],
        label="tanh int8",
    ),
)
