import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from edgefuse.errors import DataError, ParityError, RecipeError, SourceError
from edgefuse.graph.fuse import fuse_file
from edgefuse.graph.group import groups, inline_groups
from edgefuse.graph.verify import compare

NETWORK = """<ir_version: 10, opset_import: ["" : 18]>
net (float[1,3,8,8] image, float[4,3,3,3] w1, float[4,4,3,3] w2, float[4,1,1,1] w3, float[4] g,
     float[4] v, float six) => (float[1,4] logits) {
    c1 = Conv <pads = [1, 1, 1, 1]> (image, w1)
    b1 = BatchNormalization (c1, g, g, g, v)
    r1 = Relu(b1)
    a1 = Min(r1, six)
    c2 = Conv <pads = [1, 1, 1, 1]> (a1, w2)
    b2 = BatchNormalization (c2, g, g, g, v)
    s1 = Add(a1, b2)
    r2 = Relu(s1)
    c3 = Conv <group = 4> (r2, w3)
    h = HardSwish(c3)
    axes = Constant <value_ints = [2, 3]> ()
    m = ReduceMean <keepdims = 0> (h, axes)
    d = Dropout(m)
    logits = Identity(d)
}"""


def network() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(5)
    for info in list(proto.graph.input)[1:]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape)
        array = {"v": np.abs(array) + 0.5, "six": np.array(6.0)}.get(info.name, array)
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(array.astype(np.float32), info.name)
        )
        proto.graph.input.remove(info)
    for node in proto.graph.node:
        scopes = f"['', 'features', 'features.{node.output[0]}', 'op']"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/private/place.py")
    return proto


def samples(count: int = 2) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(6)
    return [{"image": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    onnx.save(network(), str(path))
    return path


def test_the_whole_way(source: Path, tmp_path: Path) -> None:
    out, plain = tmp_path / "fused.onnx", tmp_path / "plain.onnx"
    steps: list[tuple[int, int, str]] = []
    evidence = fuse_file(
        source,
        out,
        feeds=iter(samples()),
        progress=lambda *step: steps.append(step),
    )
    assert evidence["operators_after"] == {
        "ConvAddRelu": 1,
        "ConvClip": 1,
        "ConvHardSwish": 1,
        "ReduceMean": 1,
    }
    assert evidence["operators_before"]["BatchNormalization"] == 2
    fired = {p["name"]: p["fired"] for p in evidence["passes"]}
    assert fired == {
        "remove_identity": 2,
        "fold_constants": 0,
        "replace_activation_spelling": 1,
        "fold_conv_batch_norm": 2,
        "fuse_residual_add": 1,
        "fuse_conv_activation": 2,
    } | {name: 0 for name in fired if name not in _FIRST}
    assert evidence["parity"]["max_relative_error"] < 1e-5
    assert evidence["parity"]["samples"] == 2
    assert evidence["saved"]["launches"] == 7
    intermediate = evidence["intermediate_bytes"]
    saved = intermediate["before"] - intermediate["after"]
    assert evidence["saved"]["intermediate_bytes"] == saved > 0
    assert evidence["peak_bytes"]["after"] <= evidence["peak_bytes"]["before"]
    json.dumps(evidence, allow_nan=False)
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    assert steps[-1][0] == steps[-1][1]

    inline_groups(out, plain)
    compare(out, plain, samples(), max_relative_error=0.0)
    inlined = onnx.load(str(plain))
    assert not inlined.functions
    assert {o.domain for o in inlined.opset_import} == {""}


_FIRST = (
    "remove_identity",
    "fold_constants",
    "replace_activation_spelling",
    "fold_conv_batch_norm",
    "fuse_residual_add",
    "fuse_conv_activation",
)


def test_groups(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused.onnx"
    fuse_file(source, out, feeds=samples())
    first, second, third = groups(out)
    assert (first.op_type, first.activation, first.output) == ("ConvClip", "RELU6", "a1")
    assert first.original_nodes == ("Conv_c1", "BatchNormalization_b1", "Relu_r1", "Min_a1")
    assert first.original_ops == ("Conv", "BatchNormalization", "Relu", "Min")
    assert (second.ops, second.activation) == (("Conv", "Add", "Relu"), "RELU")
    assert second.module == "features.c2"
    assert third.activation == "HARDSWISH"
    assert first.weight is not None and first.weight.shape == (4, 3, 3, 3)
    assert first.bias is not None and first.bias.dtype == np.float32
    assert third.bias is None


def test_same_bytes_again_and_nothing_left_to_do(source: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.onnx" for i in range(3)]
    first = fuse_file(source, paths[0], feeds=samples())
    second = fuse_file(source, paths[1], feeds=samples())
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert first == second
    again = fuse_file(paths[0], paths[2], feeds=samples())
    assert all(p["fired"] == 0 for p in again["passes"])
    assert paths[2].read_bytes() == paths[0].read_bytes()
    assert b"/private/place.py" not in paths[0].read_bytes()


def test_names_in_the_recipe(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused.onnx"
    with pytest.raises(RecipeError, match="fuse_residual_ad") as caught:
        fuse_file(source, out, feeds=samples(), skip=["fuse_residual_ad"])
    assert "did you mean 'fuse_residual_add'" in caught.value.hint
    evidence = fuse_file(source, out, feeds=samples(), skip=["fuse_residual_add"])
    assert "ConvAddRelu" not in evidence["operators_after"]
    assert not {"ConvAddRelu", "ConvAdd"} & set(evidence["operators_after"])


def test_bad_input(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused.onnx"
    with pytest.raises(DataError, match="at least one real sample"):
        fuse_file(source, out, feeds=[])
    source.write_bytes(b"garbage")
    with pytest.raises(SourceError, match="not a valid ONNX model"):
        fuse_file(source, out, feeds=samples())
    with pytest.raises(SourceError, match="not a valid ONNX model"):
        fuse_file(tmp_path / "missing.onnx", out, feeds=samples())


def test_only_dense_tensors(tmp_path: Path) -> None:
    make = onnx.helper
    dense = make.make_tensor_value_info("x", 1, [2])
    result = make.make_tensor_value_info("y", 1, [2])
    listed = make.make_tensor_sequence_value_info("y", 1, [2])
    sparse = make.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.ones(1, np.float32), "v"),
        onnx.numpy_helper.from_array(np.zeros(1, np.int64), "i"),
        [2],
    )
    constant = make.make_node("Constant", [], ["c"], sparse_value=sparse)
    for nodes, output, match in (
        ([make.make_node("SequenceConstruct", ["x", "x"], ["y"])], listed, "'y' is no tensor"),
        ([constant, make.make_node("Add", ["x", "c"], ["y"])], result, "Sparse tensors"),
    ):
        graph = make.make_graph(nodes, "g", [dense], [output])
        path = tmp_path / "in.onnx"
        imports = [make.make_opsetid("", 18)]
        onnx.save(make.make_model(graph, opset_imports=imports, ir_version=10), str(path))
        with pytest.raises(SourceError, match=match):
            fuse_file(path, tmp_path / "out.onnx", feeds=[{"x": np.ones(2, np.float32)}])


def test_no_pass_is_blamed_for_a_model_without_finite_answers(source: Path, tmp_path: Path) -> None:
    proto = onnx.load(str(source))
    weights = next(t for t in proto.graph.initializer if t.name == "w1")
    broken = onnx.numpy_helper.to_array(weights).copy()
    broken[0, 0, 0, 0] = np.nan
    weights.CopyFrom(onnx.numpy_helper.from_array(broken, "w1"))
    onnx.save(proto, str(source))
    with pytest.raises(ParityError, match="before any pass: the reference has NaN"):
        fuse_file(source, tmp_path / "out.onnx", feeds=samples(), reproducer=tmp_path / "case")
    assert not (tmp_path / "case").exists()


def test_a_dead_branch_reads_nothing(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[2,4] x, bool c) => (float[2,4] y) {
        a = Elu(x)
        dead = If (c) <
            then_branch = t () => (float[2,4] p) { p = Relu(a) },
            else_branch = e () => (float[2,4] q) { r = Relu(a) q = Neg(r) }>
        unread = Abs(dead)
        y = HardSigmoid(a) }"""
    )
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto, str(path))
    feed = {"x": np.ones((2, 4), np.float32), "c": np.array(True)}
    fuse_file(path, out, feeds=[feed])
    assert [node.op_type for node in onnx.load(str(out)).graph.node] == ["EluHardSigmoid"]


def test_a_node_without_a_name_is_named_when_it_would_train(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] y)'
        "<float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }"
    )
    path = tmp_path / "in.onnx"
    onnx.save(proto, str(path))
    with pytest.raises(SourceError, match="Dropout 'Dropout_y' was exported in training mode"):
        fuse_file(path, tmp_path / "out.onnx", feeds=[{"x": np.ones(2, np.float32)}])


def test_old_files_and_foreign_functions(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "other" : 1]>
    g (float[1,3,3,3] x, float[4,3,3,3] w) => (float[1,4,1,1] y) {
        t = Conv(x, w)
        y = other.act(t) }
    <domain: "other", opset_import: ["" : 17]> act (a) => (b) { b = Relu(a) }"""
    proto = onnx.parser.parse_model(text)
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto, str(path))
    rng = np.random.default_rng(0)
    feed = {
        "x": rng.standard_normal((1, 3, 3, 3)).astype(np.float32),
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
    }
    evidence = fuse_file(path, out, feeds=[feed])
    assert evidence["operators_after"] == {"ConvRelu": 1}
    assert groups(out)[0].weight is None
