import numpy as np
import onnx
import pytest

from edgefuse.passes.fold_pad import PASS

from .check_pass import apply, check_pass, onnx_model


def padded(
    reader: str, y: str, *, pads: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 1, 1), before: str = "Relu",
    pad: str = "Pad(r, p)", more: str = "", x: str = "[1,4,6,6]", **options: object,
) -> onnx.ModelProto:  # fmt: skip
    """``before``, a Pad, and an operator on its output ``t``, with weights [6,4,3,3]."""
    declared = f"int64[{len(pads)}] p" + (", float[6,4,3,3] w" if "w)" in reader else "") + more
    constants: dict[str, object] = {"p": np.array(pads)} | ({"w": 1} if "w)" in reader else {})
    text = f"""g (float{x} x, {declared}) => (float{y} y) {{
        r = {before}(x)
        t = {pad}
        y = {reader} }}"""
    return onnx_model(text, **{**constants, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("before", ["Relu", "Neg"])
def test_into_a_convolution(before: str) -> None:
    cases = [
        ("Conv <strides = [2,2]> (t, w)", "[1,6,3,3]", {}),
        ("Conv <pads = [1,0,0,1]> (t, w)", "[1,6,6,6]", {}),
        ('Conv <auto_pad = "VALID"> (t, w)', "[1,6,5,5]", {}),
        ("Conv <dilations = [2,2]> (t, w)", "[1,6,7,7]", {"pads": (0, 0, 3, 0, 0, 0, 2, 5)}),
        ("Conv (t, w)", "[N,6,5,K]", {"x": "[N,4,6,M]"}),
        ("Conv (t, w)", "[1,6,5,5]", {"opset": 11}),
    ]
    models = [padded(reader, y, before=before, **more) for reader, y, more in cases]  # type: ignore[arg-type]
    check_pass(PASS, fires=[(model, 1, [before, "Conv"]) for model in models])


def test_known_pads() -> None:
    model = padded("Conv <pads = [1,2,3,4]> (t, w)", "[1,6,9,11]", pads=(0, 0, 0, 0, 0, 0, 1, 1))
    (found,) = [a for a in apply(PASS, model).proto.graph.node[1].attribute if a.name == "pads"]
    assert list(found.ints) == [1, 2, 4, 5]


def test_chosen_axes_and_old_opsets() -> None:
    axes = padded("Conv (t, w)", "[1,6,5,6]", pads=(0, 1, 1, 1), pad="Pad(r, p, , a)",
                  more=", int64[2] a", a=[2, -1])  # fmt: skip
    old = onnx_model(
        """g (float[1,4,6,6] x, float[6,4,3,3] w) => (float[1,6,5,5] y) {
        t = Pad <pads = [0,0,0,0,0,0,1,1]> (x)
        y = Conv (t, w) }""", w=1, opset=9
    )  # fmt: skip
    line = onnx_model(
        """g (float[1,4,6] x, float[6,4,3] w, int64[6] p) => (float[1,6,6] y) {
        t = Pad(x, p)
        y = Conv (t, w) }""", w=1, p=[0, 0, 1, 0, 0, 1]
    )  # fmt: skip
    check_pass(
        PASS,
        fires=[(axes, 1, ["Relu", "Conv"]), (old, 1, ["Conv"]), (line, 1, ["Conv"])],
    )


def test_into_an_average() -> None:
    kernel = "kernel_shape = [3,3]"
    check_pass(
        PASS,
        fires=[
            (padded(f"AveragePool <{kernel}> (t)", "[1,4,5,5]"), 1, ["Relu", "AveragePool"]),
            (padded(f"AveragePool <{kernel}, pads = [1,1,1,1], count_include_pad = 1> (t)",
                    "[1,4,7,7]"), 1, ["Relu", "AveragePool"]),
        ],
        ignores=[
            (padded(f"AveragePool <{kernel}, pads = [1,1,1,1]> (t)", "[1,4,7,7]"),
             "does not count its own padding"),
            (padded(f"AveragePool <{kernel}, ceil_mode = 1> (t)", "[1,4,5,5]"), "ceil_mode"),
            (padded(f"AveragePool <{kernel}> (t)", "[1,4,7,7]", pads=(0, 0, 0, 0, 0, 0, 3, 3)),
             "as much as its window [3, 3]"),
        ],
    )  # fmt: skip


def test_into_a_maximum() -> None:
    pool, y = "MaxPool <kernel_shape = [3,3], pads = [1,1,0,0]> (t)", "[1,4,6,6]"
    lowest = {"pad": "Pad(r, p, v)", "more": ", float v"}
    places = onnx_model(
        """g (float[1,4,6,6] x, int64[8] p) => (float[1,4,5,5] y, int64[1,4,5,5] i) {
        r = Relu(x)
        t = Pad(r, p)
        y, i = MaxPool <kernel_shape = [3,3]> (t) }""", p=[0, 0, 0, 0, 0, 0, 1, 1]
    )  # fmt: skip
    check_pass(
        PASS,
        fires=[
            *((padded(pool, y, before=b), 1, [b, "MaxPool"]) for b in ("Relu", "Sigmoid", "Abs")),
            (padded(pool, y, before="Neg", v=-np.inf, **lowest), 1, ["Neg", "MaxPool"]),
            (padded(pool, y, before="Neg", v=-3.4028235e38, **lowest), 1, ["Neg", "MaxPool"]),
        ],
        ignores=[
            (padded(pool, y, before="Neg"), "pads with zero what may be negative"),
            (padded(pool, y, v=-5.0, **lowest), "neither zero nor minus infinity"),
            (padded("MaxPool <kernel_shape = [3,3], ceil_mode = 1> (t)", "[1,4,5,5]"), "ceil_mode"),
            (padded("MaxPool <kernel_shape = [3,3], dilations = [2,2]> (t)", "[1,4,3,3]"),
             "has dilations"),
            (places, "returns places in the padded tensor"),
        ],
    )  # fmt: skip


def test_refusals() -> None:
    conv, y = "Conv (t, w)", "[1,6,5,5]"
    modes = [
        (padded(conv, y, pad=f'Pad <mode = "{mode}"> (r, p)', opset=19), f"pads by mode {mode}")
        for mode in ("reflect", "edge", "wrap")
    ]
    twice = onnx_model(
        """g (float[1,4,6,6] x, int64[8] p, float[6,4,3,3] w)
            => (float[1,6,5,5] y, float[1,4,7,7] z) {
        t = Pad(x, p)
        y = Conv(t, w)
        z = Relu(t) }""", p=[0, 0, 0, 0, 0, 0, 1, 1], w=1
    )  # fmt: skip
    check_pass(
        PASS,
        ignores=[
            *modes,
            (twice, "the output of Pad 'Pad_t' (t) is also read by Relu"),
            (padded(conv, y, pad="Pad(r, p, v)", more=", float v", v=1.0), "pads with 1, not zero"),
            (padded(conv, "[1,6,3,3]", pads=(0, 0, 0, 0, 0, 0, -1, -1)), "crops"),
            (padded(conv, "[1,6,5,5]", pads=(0, 1, 0, 0, 0, 1, 1, 1), x="[1,2,6,6]"),
             "pads the batch or the channels"),
            (padded('Conv <auto_pad = "SAME_UPPER"> (t, w)', "[1,6,7,7]"), "auto_pad SAME_UPPER"),
            (padded(conv, y, overridable=["p"]), "(p) is also a graph input"),
            (padded("Neg(t)", "[1,4,7,7]"), ""),
        ],
    )  # fmt: skip
