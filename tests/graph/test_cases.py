"""Small inputs that broke other converters, through the whole pipeline."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from edgefuse.errors import SourceError
from edgefuse.graph.fuse import fuse_file, serialise
from edgefuse.graph.ledger import Ledger
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes
from edgefuse.graph.verify import check_structure, compare, seeded_feed

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'


def parse(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEADER + text)
    for name, array in constants.items():
        proto.graph.input.remove(next(i for i in proto.graph.input if i.name == name))
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
        )
    return proto


def fused(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Ledger]:
    model, ledger = run_passes(prepare(proto))
    after = serialise(model)
    check_structure(after)
    feed = seeded_feed(proto, seed=1)
    compare(proto, after, [feed], max_relative_error=1e-5)
    return after, ledger


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize(
    "bias",
    ["c = Identity(b)", "c = Constant <value = float[2] {1.0, -2.0}> ()", "i = Identity(b) "
     "c = Identity(i)"],
)  # fmt: skip
def test_weights_the_matcher_cannot_see(bias: str) -> None:
    proto = parse(
        f"""g (float[1,2,4,4] x, float[2,2,3,3] w, float[2] b, float[2] g, float[2] v)
            => (float[1,2,2,2] y) {{
        {bias}
        k = Identity(w)
        t = Conv(x, k, c)
        n = BatchNormalization(t, g, g, g, v)
        y = Relu(n) }}""",
        w=normal(2, 2, 3, 3), b=normal(2), g=normal(2), v=np.ones(2),
    )  # fmt: skip
    after, ledger = fused(proto)
    assert [n.op_type for n in after.graph.node] == ["ConvRelu"]
    assert ledger.fired("fold_conv_batch_norm") == 1


def test_inside_a_branch_names_stay_apart() -> None:
    proto = parse(
        """g (float[1,2,4,4] x, bool c, float[2,2,3,3] w, float[2] g, float[2] v)
            => (float[1,2,2,2] y) {
        w_bias = Neg(g)
        y = If (c) <
            then_branch = a () => (float[1,2,2,2] u) {
                t = Conv(x, w)
                n = BatchNormalization(t, g, g, g, v)
                u = Relu(n) },
            else_branch = b () => (float[1,2,2,2] r) {
                s = Conv(x, w)
                r = BatchNormalization(s, g, g, w_bias, v) } > }""",
        w=normal(2, 2, 3, 3), g=normal(2), v=np.ones(2),
    )  # fmt: skip
    after, ledger = fused(proto)
    assert ledger.fired("fold_conv_batch_norm") == 2
    assert ledger.fired("fuse_conv_activation") == 1
    branches = [a.g for a in after.graph.node[-1].attribute]
    assert [[n.op_type for n in b.node] for b in branches] == [["ConvRelu"], ["Conv"]]
    names = [t.name for b in (after.graph, *branches) for t in b.initializer]
    assert len(set(names)) == len(names)


def test_batch_norm_across_a_branch_is_refused() -> None:
    proto = parse(
        """g (float[1,2,4,4] x, bool c, float[2,2,3,3] w, float[2] g, float[2] v)
            => (float[1,2,2,2] y) {
        t = Conv(x, w)
        y = If (c) <
            then_branch = a () => (float[1,2,2,2] u) {
                u = BatchNormalization(t, g, g, g, v) },
            else_branch = b () => (float[1,2,2,2] r) { r = Conv(x, w) } > }""",
        w=normal(2, 2, 3, 3), g=normal(2), v=np.ones(2),
    )  # fmt: skip
    _, ledger = fused(proto)
    assert "from a subgraph" in ledger.refused("fold_conv_batch_norm")[0].reason


def test_bounds_of_another_type_are_an_error_not_a_crash(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        HEADER + "g (float[4] x, double b) => (float[4] y) { y = Clip(x, b) }"
    )
    onnx.save(proto, str(tmp_path / "bad.onnx"))
    with pytest.raises(SourceError, match="not a valid ONNX model"):
        fuse_file(tmp_path / "bad.onnx", tmp_path / "out.onnx", feeds=[{"x": np.zeros(4, "f4")}])


def test_models_that_answer_noise_with_nan_are_proved_on_a_real_sample(tmp_path: Path) -> None:
    proto = parse(
        """g (float[1,2,4,4] x, float[2,2,3,3] w, float[2] g, float[2] v)
            => (float[1,2,2,2] y) {
        l = Sqrt(x)
        t = Conv(l, w)
        y = BatchNormalization(t, g, g, g, v) }""",
        w=normal(2, 2, 3, 3), g=normal(2), v=np.ones(2),
    )  # fmt: skip
    onnx.save(proto, str(tmp_path / "in.onnx"))
    rng = np.random.default_rng(0)
    feed = {"x": rng.uniform(0, 1, (1, 2, 4, 4)).astype(np.float32)}
    evidence = fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx", feeds=[feed])
    assert evidence["operators_after"] == {"Conv": 1, "Sqrt": 1}


def test_half_precision_through_everything() -> None:
    text = """g (float16[1,2,4,4] x, float16[2,2,3,3] w, float16[2] b, float[2] g, float[2] v)
            => (float16[1,2,2,2] y) {
        t = Conv(x, w, b)
        n = BatchNormalization(t, g, g, g, v)
        y = Relu(n) }"""
    proto = parse(text, w=normal(2, 2, 3, 3), b=normal(2), g=normal(2), v=np.ones(2))
    for tensor in proto.graph.initializer:
        if tensor.name in ("w", "b"):
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    model, ledger = run_passes(prepare(proto))
    after = serialise(model)
    assert [n.op_type for n in after.graph.node] == ["ConvRelu"]
    compare(proto, after, [seeded_feed(proto, seed=1)], max_relative_error=5e-3)
    assert ledger.saved_launches == 2
