"""Small inputs that broke other tools' folding and fusing, each with its right value.

Every case goes through all passes; what is right was worked out by hand or with NumPy, not by
running the model without the passes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgefuse.errors import SourceError
from edgefuse.graph.fuse import fuse_file, serialise
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.verify import Feed, Runner, check_structure
from edgefuse.parity import difference

from .check_pass import onnx_model

Array = np.ndarray
RNG = np.random.default_rng


def normal(*shape: int, seed: int = 0) -> Array:
    return RNG(seed + sum(shape)).standard_normal(shape).astype(np.float32)


class Fused:
    """A model after all passes."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        onnx.checker.check_model(proto, full_check=True)
        model, self.ledger = run_passes(prepare(proto))
        self.proto = serialise(model)
        check_structure(self.proto)
        self.ops = [n.op_type for n in self.proto.graph.node]
        bodies = {f.name: [n.op_type for n in f.node] for f in self.proto.functions}
        self.plain = [op for name in self.ops for op in bodies.get(name, [name])]

    def __call__(self, **feed: Array) -> dict[str, Array]:
        return Runner(self.proto)(feed)

    def reasons(self, name: str) -> str:
        return " | ".join(e.reason for e in self.ledger.refused(name))


def close(actual: Array, expected: Array, limit: float = 2e-6) -> None:
    """Within ``limit`` of the largest expected value."""
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(np.float64) - expected).max() <= limit * np.abs(expected).max()


def convolved(x: Array, w: Array, groups: int = 1) -> Array:
    """Valid convolution of [N,C,H,W] in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    parts = zip(np.split(windows, groups, axis=1), np.split(w, groups))
    return np.concatenate([np.einsum("nchwij,ocij->nohw", a, b) for a, b in parts], axis=1)


def transposed(x: Array, w: Array, groups: int = 1) -> Array:
    """ConvTranspose of stride 1 in float64: every input pixel paints its kernel."""
    results = []
    for a, b in zip(np.split(x.astype(np.float64), groups, axis=1), np.split(w, groups)):
        (n, _, height, width), (_, channels, rows, columns) = a.shape, b.shape
        out = np.zeros((n, channels, height + rows - 1, width + columns - 1))
        for i in range(height):
            for j in range(width):
                out[:, :, i : i + rows, j : j + columns] += np.einsum(
                    "nc,cokl->nokl", a[:, :, i, j], b
                )
        results.append(out)
    return np.concatenate(results, axis=1)


def statistics(channels: int, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """gamma, beta, mean, variance."""
    rng = RNG(seed)
    gamma, variance = rng.uniform(0.5, 2, channels), rng.uniform(0.2, 3, channels)
    beta, mean = rng.standard_normal(channels), rng.standard_normal(channels)
    return tuple(a.astype(np.float32) for a in (gamma, beta, mean, variance))  # type: ignore[return-value]


def normalised(y: Array, parameters: Sequence[Array], epsilon: float = 1e-5) -> Array:
    shape = (1, -1, *(1,) * (y.ndim - 2))
    gamma, beta, mean, variance = (p.astype(np.float64).reshape(shape) for p in parameters)
    return (y - mean) / np.sqrt(variance + epsilon) * gamma + beta


def declared(prefix: str, channels: int) -> str:
    return ", ".join(f"float[{channels}] {prefix}{letter}" for letter in "gbmv")


def named(prefix: str, parameters: Sequence[Array]) -> dict[str, Array]:
    return {prefix + letter: array for letter, array in zip("gbmv", parameters)}


@pytest.mark.parametrize(("left", "right"), [(8, 16), (8, 8)])
@pytest.mark.parametrize("taken", ["other", "wa_bias", "wb_bias", "wa_folded"])
def test_case_01_two_folds_never_share_a_name(left: int, right: int, taken: str) -> None:
    text = f"""g (float[1,4,6,6] x, float[{left},4,3,3] wa, float[{right},4,3,3] wb,
        {declared("p", left)}, {declared("q", right)})
        => (float[1,{left},4,4] y, float[1,{right},4,4] z, float[1,4,6,6] {taken}) {{
        a = Conv(x, wa)
        b = Conv(x, wb)
        y = BatchNormalization(a, pg, pb, pm, pv)
        z = BatchNormalization(b, qg, qb, qm, qv)
        {taken} = Relu(x) }}"""
    wa, wb = normal(left, 4, 3, 3), normal(right, 4, 3, 3, seed=9)
    p, q = statistics(left), statistics(right, 3)
    fused = Fused(onnx_model(text, wa=wa, wb=wb, **named("p", p), **named("q", q)))
    assert fused.ledger.fired("fold_conv_batch_norm") == 2
    x = normal(1, 4, 6, 6)
    found = fused(x=x)
    close(found["y"], normalised(convolved(x, wa), p))
    close(found["z"], normalised(convolved(x, wb), q))
    names = [t.name for t in fused.proto.graph.initializer]
    names += [o for n in fused.proto.graph.node for o in n.output]
    assert len(set(names)) == len(names)


def test_case_02_a_wrong_export_fails_before_any_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from cases import pipeline

    (tmp_path / "case_02_net.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten())\n"
    )
    export = torch.onnx.export

    def wrong(module: object, *arguments: object, **options: object) -> object:
        module = copy.deepcopy(module)
        module[0].bias.data[1] += 0.25  # type: ignore[index]
        return export(module, *arguments, **options)

    monkeypatch.setattr(torch.onnx, "export", wrong)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "store"))
    shapes = {"x": (2, 4, 4)}
    model = {
        "torch": {"callable": "case_02_net:net", "weights": "random"},
        "inputs": pipeline.inputs(shapes),
        "outputs": ["y"],
    }
    data = pipeline.samples(shapes, 4, 1), pipeline.samples(shapes, 4, 2)
    found = pipeline.run(pipeline.write_recipe(tmp_path, "wrong", model, *data), until="fuse")
    sys.modules.pop("case_02_net", None)
    assert "export against eager PyTorch" in found.error
    status = {stage["name"]: stage["status"] for stage in found.report["stages"]}
    assert (status["export"], status["fuse"]) == ("failed", "blocked")


def test_case_03_shared_weights_are_cloned() -> None:
    text = f"""g (float[1,3,5,5] x, float[8,3,3,3] w, {declared("p", 8)})
        => (float[1,8,3,3] y, float[1,8,3,3] z) {{
        a = Conv(x, w)
        y = BatchNormalization(a, pg, pb, pm, pv)
        z = Conv(x, w) }}"""
    w, p, x = normal(8, 3, 3, 3), statistics(8), normal(1, 3, 5, 5)
    fused = Fused(onnx_model(text, w=w, **named("p", p)))
    assert fused.ops == ["Conv", "Conv"]
    found = fused(x=x)
    close(found["y"], normalised(convolved(x, w), p))
    close(found["z"], convolved(x, w))


def test_case_04_an_output_used_twice_is_not_folded() -> None:
    text = f"""g (float[1,3,5,5] x, float[8,3,3,3] w, {declared("p", 8)})
        => (float[1,8,3,3] y, float[1,8,3,3] z) {{
        a = Conv(x, w)
        y = BatchNormalization(a, pg, pb, pm, pv)
        z = Relu(a) }}"""
    w, p, x = normal(8, 3, 3, 3), statistics(8), normal(1, 3, 5, 5)
    fused = Fused(onnx_model(text, w=w, **named("p", p)))
    assert fused.ledger.fired("fold_conv_batch_norm") == 0
    reason = "the output of Conv 'Conv_a' (a) is also read by Relu 'Relu_z'"
    assert reason in fused.reasons("fold_conv_batch_norm")
    found = fused(x=x)
    close(found["y"], normalised(convolved(x, w), p))
    close(found["z"], np.maximum(convolved(x, w), 0))


@pytest.mark.parametrize(("outputs", "groups"), [(4, 1), (6, 1), (4, 2), (6, 2)])
def test_case_05_conv_transpose_axis(outputs: int, groups: int) -> None:
    text = f"""g (float[1,4,5,5] x, float[4,{outputs // groups},3,3] w, {declared("p", outputs)})
        => (float[1,{outputs},7,7] y) {{
        a = ConvTranspose <group = {groups}> (x, w)
        y = BatchNormalization(a, pg, pb, pm, pv) }}"""
    w, p, x = normal(4, outputs // groups, 3, 3), statistics(outputs), normal(1, 4, 5, 5)
    fused = Fused(onnx_model(text, w=w, **named("p", p)))
    assert fused.ops == ["ConvTranspose"]
    close(fused(x=x)["y"], normalised(transposed(x, w, groups), p))


@pytest.mark.parametrize("bias", [True, False])
def test_case_06_existing_bias(bias: bool) -> None:
    text = f"""g (float[1,2,2,2] x, float[2,1,1,1] w, float[2] b, {declared("p", 2)})
        => (float[1,2,2,2] y) {{
        a = Conv <group = 2> (x, w{", b" if bias else ""})
        y = BatchNormalization <epsilon = 0.0> (a, pg, pb, pm, pv) }}"""
    given = {"pg": [2.0, 2.0], "pb": [0.25, -1.0], "pm": [0.5, 0.5], "pv": [1.0, 1.0]}
    fused = Fused(onnx_model(text, w=[[[[1.0]]], [[[3.0]]]], b=[1.0, -2.0], **given))
    assert fused.ops == ["Conv"]
    y = fused(x=np.zeros((1, 2, 2, 2), np.float32))["y"][0, :, 0, 0]
    # (b - mean) s + beta
    expected = [(1 - 0.5) * 2 + 0.25, (-2 - 0.5) * 2 - 1] if bias else [-0.75, -2.0]
    assert y.tolist() == expected
    ones = fused(x=np.ones((1, 2, 2, 2), np.float32))["y"][0, :, 0, 0]
    assert (ones - y).tolist() == [2.0, 6.0]


@pytest.mark.parametrize(
    ("shape", "columns", "folds"),
    [
        ((4,), 4, True), ((1, 4), 4, True), ((1,), 4, True), ((1,), 1, True), ((1, 1), 1, True),
        ((2, 1), 4, False), ((2, 1), 1, False), ((2, 4), 4, False), ((1, 2, 4), 4, False),
        ((1, 1, 1, 1, 4), 4, False), ((4,), 1, False),
    ],
)  # fmt: skip
def test_case_07_gemm_bias_broadcast(shape: tuple[int, ...], columns: int, folds: bool) -> None:
    x, w, b = normal(2, 3), normal(3, columns), normal(*shape, seed=5)
    expected = x.astype(np.float64) @ w + b
    text = f"""g (float[2,3] x, float[3,{columns}] w, float{list(shape)} b)
        => (float{list(expected.shape)} y) {{
        a = MatMul(x, w)
        y = Add(b, a) }}"""
    fused = Fused(onnx_model(text, w=w, b=b))
    assert fused.ledger.fired("fold_conv_affine") == int(folds)
    if folds:
        assert fused.ops == ["Gemm"]
    else:
        assert f"{list(shape)}, is not one number for each of the {columns} output channels" in (
            fused.reasons("fold_conv_affine")
        )
    close(fused(x=x)["y"], expected)


CLIPS = [
    ("y = Clip(a, lo, hi)", 18, (-1.0, 1.0), True),
    ("y = Clip(a, lo)", 18, (-1.0, np.inf), True),
    ("y = Clip(a, , hi)", 18, (-np.inf, 1.0), True),
    ("y = Clip(a)", 18, (-np.inf, np.inf), False),
    ("y = Clip <min = -1.0, max = 1.0> (a)", 10, (-1.0, 1.0), True),
    ("y = Clip <max = 1.0> (a)", 10, (-np.inf, 1.0), True),
    ("r = Relu(a) y = Clip(r, zero)", 18, (0.0, np.inf), True),
    ("n = Neg(hi) y = Clip(a, n, hi)", 18, (-1.0, 1.0), True),
    ("n = Neg(run) y = Clip(a, n, hi)", 18, (-0.5, 1.0), False),
]


@pytest.mark.parametrize(("body", "opset", "bounds", "fuses"), CLIPS)
def test_case_08_clip_in_all_its_forms(
    body: str, opset: int, bounds: tuple[float, float], fuses: bool
) -> None:
    text = f"""g (float[1,3,5,5] x, float run, float[4,3,3,3] w, float lo, float hi, float zero)
        => (float[1,4,3,3] y) {{
        a = Conv(x, w)
        {body} }}"""
    w, x = normal(4, 3, 3, 3), normal(1, 3, 5, 5)
    constants = {"w": w, "lo": -1.0, "hi": 1.0, "zero": 0.0}
    fused = Fused(onnx_model(text, opset=opset, **constants))
    assert fused.ledger.fired("fuse_conv_activation") == int(fuses)
    given = {i.name for i in fused.proto.graph.input}
    feed = {"x": x, "run": np.array(0.5, np.float32)}
    found = fused(**{name: feed[name] for name in given})["y"]
    close(found, np.clip(convolved(x, w), *bounds))
    if "run" in body:
        assert "the min bound of Clip 'Clip_y'" in fused.reasons("fuse_conv_activation")


def test_case_08_bounds_of_another_type_are_an_error(tmp_path: Path) -> None:
    proto = onnx_model("g (float[4] x, double b) => (float[4] y) { y = Clip(x, b) }", b=1.0)
    onnx.save(proto, str(tmp_path / "bad.onnx"))
    with pytest.raises(SourceError, match="not a valid ONNX model"):
        fuse_file(tmp_path / "bad.onnx", tmp_path / "out.onnx", feeds=[{"x": np.zeros(4, "f4")}])


@pytest.mark.parametrize(
    "body",
    ["m = Max(a, zero) y = Min(m, six)", "m = Max(zero, a) y = Min(six, m)",
     "m = Relu(a) y = Min(m, six)", "m = Min(a, six) y = Relu(m)", "y = Clip(a, zero, six)"],
)  # fmt: skip
def test_case_09_relu6_in_all_spellings_is_one_clip(body: str) -> None:
    text = f"""g (float[1,3,5,5] x, float[4,3,3,3] w, float zero, float six)
        => (float[1,4,3,3] y) {{
        a = Conv(x, w)
        {body} }}"""
    w, x = 3 * normal(4, 3, 3, 3), normal(1, 3, 5, 5)
    fused = Fused(onnx_model(text, w=w, zero=0.0, six=6.0))
    assert (fused.ops, fused.plain) == (["ConvClip"], ["Conv", "Clip"])
    (activation,) = [p.value for p in fused.proto.graph.node[0].metadata_props
                     if p.key == "edgefuse.activation"]  # fmt: skip
    assert activation == "RELU6"
    close(fused(x=x)["y"], np.clip(convolved(x, w), 0, 6))


# Case 10, LayerNorm spelt by hand, is in test_replace_norm_spelling.py.


@pytest.mark.parametrize(
    ("bias", "overridable", "folds"),
    [
        ("c = Identity(b)", (), 1),
        ("c = Constant <value = float[2] {1.0, -2.0}> ()", (), 1),
        ("i = Identity(b) c = Identity(i)", (), 1),
        ("c = Identity(b)", ("b",), 0),
        ("c = Identity(b)", ("w",), 0),
        ("c = Identity(b)", ("pv",), 0),
    ],
)
def test_case_11_weights_the_matcher_cannot_see(
    bias: str, overridable: tuple[str, ...], folds: int
) -> None:
    text = f"""g (float[1,2,4,4] x, float[2,2,3,3] w, float[2] b, {declared("p", 2)})
        => (float[1,2,2,2] y) {{
        {bias}
        k = Identity(w)
        t = Conv(x, k, c)
        y = BatchNormalization(t, pg, pb, pm, pv) }}"""
    w, p, x = normal(2, 2, 3, 3), statistics(2), normal(1, 2, 4, 4)
    b = np.array([1.0, -2.0], np.float32)
    constants = {"w": w, "b": b, **named("p", p)}
    fused = Fused(onnx_model(text, overridable=overridable, **constants))
    assert fused.ledger.fired("fold_conv_batch_norm") == folds
    close(fused(x=x)["y"], normalised(convolved(x, w) + b.reshape(1, 2, 1, 1), p))
    if overridable:
        assert "a caller may override it" in fused.reasons("fold_conv_batch_norm")
        other = {name: 2 * constants[name] for name in overridable}
        given = {**constants, **other}
        after = [given[f"p{letter}"] for letter in "gbmv"]
        expected = normalised(convolved(x, given["w"]) + given["b"].reshape(1, 2, 1, 1), after)
        session = Runner(fused.proto)._session
        (found,) = session.run(["y"], {"x": x, **other})
        close(found, expected)


def test_case_12_batch_norm_with_no_layer_before_it_becomes_mul_and_add() -> None:
    text = f"""g (float[1,3,6,6] x, float[4,3,3,3] w, {declared("p", 4)}, {declared("q", 4)})
        => (float[1,4,2,2] y) {{
        a = Conv(x, w)
        r = Relu(a)
        n = BatchNormalization(r, pg, pb, pm, pv)
        l = MaxPool <kernel_shape = [3,3]> (n)
        y = BatchNormalization(l, qg, qb, qm, qv) }}"""
    w, p, q, x = normal(4, 3, 3, 3), statistics(4), statistics(4, 7), normal(1, 3, 6, 6)
    fused = Fused(onnx_model(text, w=w, **named("p", p), **named("q", q)))
    assert "BatchNormalization" not in fused.plain
    assert fused.plain == ["Conv", "Relu", "Mul", "Add", "MaxPool", "Mul", "Add"]
    assert "is Relu 'Relu_r'" in fused.reasons("fold_conv_batch_norm")
    assert "is MaxPool 'MaxPool_l'" in fused.reasons("fold_conv_batch_norm")
    inner = normalised(np.maximum(convolved(x, w), 0), p)
    windows = np.lib.stride_tricks.sliding_window_view(inner, (3, 3), axis=(2, 3))
    close(fused(x=x)["y"], normalised(windows.max(axis=(4, 5)), q))


def test_case_13_batch_norm_without_affine_parameters() -> None:
    text = f"""g (float[1,3,5,5] x, float[4,3,3,3] w, {declared("p", 4)}) => (float[1,4,3,3] y) {{
        a = Conv(x, w)
        y = BatchNormalization(a, pg, pb, pm, pv) }}"""
    _, _, mean, variance = statistics(4)
    p = (np.ones(4, np.float32), np.zeros(4, np.float32), mean, variance)
    w, x = normal(4, 3, 3, 3), normal(1, 3, 5, 5)
    fused = Fused(onnx_model(text, w=w, **named("p", p)))
    assert fused.ops == ["Conv"]
    expected = (convolved(x, w) - mean.reshape(1, 4, 1, 1)) / np.sqrt(
        variance.reshape(1, 4, 1, 1).astype(np.float64) + 1e-5
    )
    close(fused(x=x)["y"], expected)


def test_case_13_batch_norm_without_running_statistics_is_refused() -> None:
    text = """g (float[2,3,5,5] x, float[4,3,3,3] w, float[4] g, float[4] b, int64[3] axes)
        => (float[2,4,3,3] y) {
        a = Conv(x, w)
        s = ReduceMean <keepdims = 0> (a, axes)
        d = ReduceSumSquare <keepdims = 0> (a, axes)
        y = BatchNormalization(a, g, b, s, d) }"""
    w, x, axes = normal(4, 3, 3, 3), normal(2, 3, 5, 5), np.array([0, 2, 3])
    gamma, beta, _, _ = statistics(4)
    fused = Fused(onnx_model(text, w=w, g=gamma, b=beta, axes=axes))
    assert fused.ops.count("BatchNormalization") == 1
    assert fused.ledger.fired("fold_conv_batch_norm") == 0
    assert fused.ledger.fired("replace_batch_norm") == 0
    assert "is also read by ReduceMean" in fused.reasons("fold_conv_batch_norm")
    assert "the mean of BatchNormalization 'BatchNormalization_y' (s) is computed at run time" in (
        fused.reasons("replace_batch_norm")
    )
    inner = convolved(x, w)
    mean, squares = inner.mean(axis=(0, 2, 3)), (inner**2).sum(axis=(0, 2, 3))
    close(fused(x=x)["y"], normalised(inner, (gamma, beta, mean, squares)))


@pytest.mark.parametrize(
    "node",
    ["y, m, v = BatchNormalization <training_mode = 1> (x, g, g, g, u)", "y = Dropout(x, r, t)"],
)
def test_case_14_exported_in_training_mode_is_an_error(node: str) -> None:
    text = f"""g (float[1,8,2,2] x, float[8] g, float[8] u, float r, bool t)
        => (float[1,8,2,2] y) {{
        {node} }}"""
    with pytest.raises(SourceError, match="training mode") as caught:
        prepare(onnx_model(text, g=1, u=np.ones(8), r=0.5, t=True))
    assert "call model.eval() before exporting" in caught.value.hint


def small(kind: str, gamma: float, variance: float, weight: Array) -> onnx.ModelProto:
    text = f"""g ({kind}[1,2,3,3] x, {kind}[2,2,1,1] w, float[2] g, float[2] z, float[2] v)
        => ({kind}[1,2,3,3] y) {{
        t = Conv(x, w)
        y = BatchNormalization(t, g, z, z, v) }}"""
    return onnx_model(text, opset=22, w=weight, g=[gamma] * 2, z=[0.0, 0.0], v=[variance] * 2)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_case_15_folded_in_float64_and_cast_last(kind: str) -> None:
    proto = small(kind, 3.0, 1e5, normal(2, 2, 1, 1))
    fused = Fused(proto)
    assert fused.ops == ["Conv"]
    given = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    exact = given.astype(np.float64) * 3.0 / np.sqrt(np.float64(1e5) + np.float32(1e-5))
    found = onnx.numpy_helper.to_array(fused.proto.graph.initializer[0])
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, exact.astype(given.dtype))


@pytest.mark.parametrize(
    ("gamma", "variance", "reason"),
    [(1e-7, 1.0, "too small for float16"), (1e4, 1e-10, "not finite in float16")],
)
def test_case_15_what_half_precision_cannot_hold_is_refused(
    gamma: float, variance: float, reason: str
) -> None:
    fused = Fused(small("float16", gamma, variance, normal(2, 2, 1, 1)))
    assert fused.ledger.fired("fold_conv_batch_norm") == 0
    assert reason in fused.reasons("fold_conv_batch_norm")


def test_case_16_an_exact_fold_is_judged_by_its_largest_error_not_by_a_sum() -> None:
    text = f"""g (float[2,3,224,224] x, float[3,3,3,3] w, {declared("p", 3)})
        => (float[2,3,224,224] y) {{
        a = Conv <pads = [1,1,1,1]> (x, w)
        y = BatchNormalization(a, pg, pb, pm, pv) }}"""
    proto = onnx_model(text, w=normal(3, 3, 3, 3), **named("p", statistics(3)))
    fused = Fused(proto)
    assert fused.ops == ["Conv"]
    feed: Feed = {"x": RNG(1).standard_normal((2, 3, 224, 224)).astype(np.float32)}
    before, after = Runner(proto)(feed), Runner(fused.proto)(feed)
    summed = float(np.abs(before["y"] - after["y"]).sum())
    found = difference([(before, after)], max_relative_error=4e-6)
    assert summed > 0.01, "a sum over 301,056 elements says little"
    assert found.max_rel_to_peak < 1e-6
