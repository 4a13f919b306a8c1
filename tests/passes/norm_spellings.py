"""Normalisations written out in the ways of exporters, as ONNX text models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .check_pass import onnx_model

CENTRE = {
    "once": "m = {mean} c = Sub(x, m)",
    "twice": "m = {mean} c = Sub(x, m) d = Sub(x, m)",
    "two means": "m = {mean} c = Sub(x, m) k = {mean} d = Sub(x, k)",
    "none": "",
}
SQUARE = {"pow": "p = Pow(c, two)", "mul": "p = Mul(c, c)", "mul twice": "p = Mul(c, {d})"}
ROOT = {
    "div": "q = Sqrt(e) n = Div({d}, q)",
    "reciprocal": "q = Sqrt(e) i = Reciprocal(q) n = Mul({d}, i)",
    "reciprocal first": "q = Sqrt(e) i = Reciprocal(q) n = Mul(i, {d})",
    "one over": "q = Sqrt(e) i = Div(one, q) n = Mul({d}, i)",
    "pow": "i = Pow(e, minus_half) n = Mul({d}, i)",
    "pow half": "i = Pow(e, half) n = Div({d}, i)",
}
TAIL = {
    "scale, bias": "t = Mul(n, s) y = Add(t, b)",
    "bias, scale swapped": "t = Mul(s, n) y = Add(b, t)",
    "scale": "y = Mul(n, s)",
    "bias": "y = Add(n, b)",
    "none": "y = Identity(n)",
}
# The scale on the root's side, as TensorFlow writes a normalisation: x i - (m i - b).
FOLDED = "r = Mul(i, s) f = Mul(x, r) g = Mul(m, r) h = Sub(b, g) y = Add(f, h)"


def written_norm(
    shape: str = "2,5,8",
    *,
    centre: str = "twice",
    square: str = "pow",
    root: str = "div",
    tail: str = "scale, bias",
    axes: tuple[int, ...] = (-1,),
    keepdims: bool = True,
    opset: int = 18,
    scale: tuple[int, ...] = (8,),
    bias: tuple[int, ...] | None = None,
    epsilon: float = 1e-3,
    kind: str = "float",
    text: str = "",
    outputs: str = "",
    **more: Any,
) -> onnx.ModelProto:
    """(x - mean(x)) / sqrt(variance + epsilon) s + b; ``text`` replaces the last part."""
    listed = ", ".join(str(a) for a in axes)
    keep = "" if keepdims else ", keepdims = 0"
    back = "" if keepdims else "_flat"

    def mean(of: str) -> str:
        if opset >= 18:
            attributes = "" if keepdims else " <keepdims = 0>"
            return f"ReduceMean{attributes}({of}, axes)"
        return f"ReduceMean <axes = [{listed}]{keep}> ({of})"

    def widened(name: str) -> str:
        if keepdims:
            return ""
        many = f"Unsqueeze({name}_flat, axes)" if opset >= 13 else (
            f"Unsqueeze <axes = [{listed}]> ({name}_flat)"
        )  # fmt: skip
        return f"{name} = {many}"

    centred = CENTRE[centre]
    for name in ("m", "k"):
        centred = centred.replace(f"{name} = {{mean}}", f"{name}{back} = {mean('x')} "
                                  + widened(name))  # fmt: skip
    bias = scale if bias is None else bias
    declared = ",".join(map(str, scale)), ",".join(map(str, bias))
    twice = {"once": "c", "none": "x"}.get(centre, "d")
    squares = SQUARE[square].replace("c", "x") if centre == "none" else SQUARE[square]
    body = f"""{centred} {squares} v{back} = {mean("p")} {widened("v")}
        e = Add(v, epsilon) {ROOT[root]} {text or TAIL[tail]}""".replace("{d}", twice)
    named = {
        "two": f"{kind} two", "one": f"{kind} one", "half": f"{kind} half",
        "minus_half": f"{kind} minus_half", "epsilon": f"{kind} epsilon",
        "axes": f"int64[{len(axes)}] axes",
        "s": f"{kind}[{declared[0]}] s" if scale else f"{kind} s",
        "b": f"{kind}[{declared[1]}] b" if bias else f"{kind} b",
    }  # fmt: skip
    words = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: text for name, text in named.items() if name in words}
    values: dict[str, Any] = {"two": 2.0, "one": 1.0, "half": 0.5, "minus_half": -0.5,
                              "epsilon": epsilon, "axes": axes, "s": 1, "b": 2}  # fmt: skip
    return onnx_model(
        f"g ({kind}[{shape}] x, {', '.join(used.values())}) => ({kind}[{shape}] y{outputs}) "
        f"{{ {body} }}",
        opset=opset,
        **{name: _number(v) for name, v in values.items() if name in used},
        **more,
    )


def _number(value: Any) -> Any:
    return value if isinstance(value, int) else np.array(value)


def written_group_norm(
    *,
    opset: int = 18,
    batch: str = "2",
    target: tuple[int, ...] = (0, 2, -1),
    inner_scale: float = 1.0,
    scale: tuple[int, ...] = (8, 1, 1),
    kind: str = "float",
    text: str = "t = Mul(k, s) y = Add(t, b)",
    outputs: str = "",
) -> onnx.ModelProto:
    """GroupNorm of [batch, 8, 5, 6] in two groups, as torch exports it."""
    declared = ",".join(map(str, scale))
    given = {"s": (f"{kind}[{declared}] s", 1), "b": (f"{kind}[8,1,1] b", 2)}
    used = {
        name: pair for name, pair in given.items() if f" {name})" in text or f"({name}," in text
    }
    return onnx_model(
        f"""g ({kind}[{batch},8,5,6] x, {kind}[2] o, {kind}[2] z, int64[{len(target)}] a,
            int64[4] c{"".join(", " + pair[0] for pair in used.values())})
            => ({kind}[{batch},8,5,6] y{outputs}) {{
        r = Reshape(x, a)
        i = InstanceNormalization <epsilon = 0.001> (r, o, z)
        k = Reshape(i, c)
        {text} }}""",
        opset=opset, o=np.full(2, inner_scale), z=np.zeros(2), a=np.array(target),
        c=np.array([2 if batch == "2" else 0, 8, 5, 6]),
        **{name: pair[1] for name, pair in used.items()},
    )  # fmt: skip
