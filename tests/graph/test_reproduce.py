"""A pass that is wrong ends the run, is named, and leaves a graph on which it is still wrong."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from command import edgefuse

from edgefuse.errors import EdgefuseError, ParityError, StageError
from edgefuse.graph import reproduce
from edgefuse.graph.builder import GraphBuilder
from edgefuse.graph.fuse import fuse_file
from edgefuse.graph.rule import PASSES, Match, Pass

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
net (float[1,8] x, float[8,8] w) => (float[1,8] y, float[1,8] first) {
    first = Neg(x)
    a = MatMul(first, w)
    b = Softsign(a)
    c = Cos(b)
    d = Softsign(c)
    e = Sin(d)
    f = Softsign(e)
    y = Cos(f)
}"""
WRONG = "Softsign_d"


def network() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    del proto.graph.input[1]
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    for node in proto.graph.node:
        scopes = f"['', 'layers', 'layers.{node.output[0]}', 'op']"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    return proto


SAMPLE = {"x": np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)}


def always(node: Any, context: object) -> Match:
    return Match((node,))


def entry(name: str, rewrite: Callable[[Match, GraphBuilder], None], **changes: Any) -> Pass:
    whole = Pass(name, "For a test.", "normalise", ("Softsign",), always, rewrite)
    return replace(whole, **changes)


def to_tanh(found: Match, builder: GraphBuilder) -> None:
    """Right nowhere: tanh(x) is not x / (1 + |x|)."""
    (node,) = found.nodes
    builder.node("Tanh", node.inputs, replaces=(node,))


def raises(found: Match, builder: GraphBuilder) -> None:
    if found.nodes[0].name == WRONG:
        raise KeyError("no such slope")
    found.nodes[0].name = f"Softsign_done_{found.nodes[0].name}"


def match_raises(node: Any, context: object) -> None:
    if node.name == WRONG:
        raise ZeroDivisionError("division by zero\nsecond line")


def invalid(found: Match, builder: GraphBuilder) -> None:
    (node,) = found.nodes
    builder.node("Softsign", [*node.inputs, *node.inputs], replaces=(node,))


def unknown_operator(found: Match, builder: GraphBuilder) -> None:
    (node,) = found.nodes
    builder.node("Softsigh", node.inputs, replaces=(node,))


def another_type(found: Match, builder: GraphBuilder) -> None:
    (node,) = found.nodes
    new = builder.node("Cast", node.inputs, {"to": 11}, replaces=(node,))
    new.outputs[0].dtype = ir.DataType.DOUBLE


def flip(found: Match, builder: GraphBuilder) -> None:
    (node,) = found.nodes
    other = {"Sin": "Cos", "Cos": "Sin"}
    builder.node(other[node.op_type], node.inputs, replaces=(node,))


def only_wrong(node: Any, context: object) -> Match | None:
    return Match((node,)) if node.name == WRONG else None


def unmarked(node: Any, context: object) -> Match | None:
    return None if str(node.name).startswith("Softsign_done") else Match((node,))


CASES = {
    "numbers": (entry("break_numbers", to_tanh, match=only_wrong), "changed the numbers", True),
    "rewrite": (entry("break_rewrite", raises, match=unmarked), "KeyError: 'no such", True),
    "match": (entry("break_match", to_tanh, match=match_raises), "ZeroDivisionError: div", True),
    "invalid": (entry("break_graph", invalid, match=only_wrong), "broke the graph", True),
    "unknown": (entry("break_names", unknown_operator, match=only_wrong), "broke the graph", True),
    "type": (
        entry("break_type", another_type, anchors=("Cos",),
              match=lambda node, context: Match((node,)) if node.name == "Cos_y" else None),
        "changed the type or shape", False,
    ),
    "endless": (
        entry("break_end", flip, anchors=("Cos", "Sin")), "never comes to an end", False,
    ),
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    onnx.save(network(), str(path))
    return path


def fails(source: Path, folder: Path) -> EdgefuseError:
    out = folder / "fused.onnx"
    with pytest.raises((StageError, ParityError)) as caught:
        fuse_file(source, out, feeds=[SAMPLE], reproducer=folder / "reproducer")
    assert not out.exists()
    assert caught.value.exit_code == 3
    assert [p for p in folder.iterdir() if p.name.startswith(".tmp")] == []
    return caught.value


@pytest.mark.parametrize("kind", CASES)
def test_a_defect_is_named_saved_and_repeated(
    kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    broken, says, at_the_wrong_one = CASES[kind]
    monkeypatch.setitem(PASSES._entries, broken.name, broken)
    error = fails(source, tmp_path)
    folder = tmp_path / "reproducer"
    assert f"pass {broken.name} " in error.message
    assert says in error.message
    assert f"python -m edgefuse.graph.reproduce {folder}" in error.message
    assert broken.name in error.hint
    about = json.loads((folder / "reproducer.json").read_text())
    assert about["command"] == "python -m edgefuse.graph.reproduce reproducer"
    if at_the_wrong_one:
        assert f"Softsign {WRONG!r}" in error.message
        assert "torch module layers.d" in error.message
        assert (about["nodes"], about["module"]) == ([WRONG], "layers.d")
        cut = onnx.load(str(folder / "graph.onnx"))
        assert [n.op_type for n in cut.graph.node] == ["Softsign"]
        with np.load(folder / "inputs.npz") as inputs:
            assert list(inputs) == ["c"]
            assert np.abs(inputs["c"]).max() > 0
    assert sorted(p.name for p in folder.iterdir()) == [
        "graph.onnx", "inputs.npz", "reproducer.json"
    ]  # fmt: skip
    assert reproduce.main([str(folder)]) == 1
    assert re.match(f"{broken.name} .+: .+", capsys.readouterr().out)
    monkeypatch.setitem(PASSES._entries, broken.name, replace(broken, match=lambda n, c: None))
    assert reproduce.main([str(folder)]) == 0
    assert "right on" in capsys.readouterr().out
    monkeypatch.delitem(PASSES._entries, broken.name)
    assert reproduce.main([str(folder)]) == 2
    assert "there is no pass" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["Softsign_b", "Softsign_d", "Softsign_f"])
def test_the_first_wrong_application_of_many(
    wrong: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three applications, one is wrong: found by replaying from the graph before the pass."""

    def rewrite(found: Match, builder: GraphBuilder) -> None:
        (node,) = found.nodes
        kind = "Tanh" if node.name == wrong else "Softsign"
        builder.node(kind, node.inputs, replaces=(node,))

    def match(node: Any, context: object) -> Match | None:
        return None if str(node.name).endswith("_Softsign") else Match((node,))

    broken = entry("break_some", rewrite, match=match)
    monkeypatch.setitem(PASSES._entries, broken.name, broken)
    error = fails(source, tmp_path)
    assert isinstance(error, ParityError)
    assert f"at Softsign {wrong!r} (torch module layers.{wrong[-1]})" in error.message
    cut = onnx.load(str(tmp_path / "reproducer" / "graph.onnx"))
    assert [n.name for n in cut.graph.node] == [wrong]


def test_passes_that_undo_each_other_are_both_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = entry("break_there", flip, anchors=("Sin",), tolerance=10.0)
    back = entry("break_back", flip, anchors=("Cos",), tolerance=10.0)
    for broken in (there, back):
        monkeypatch.setitem(PASSES._entries, broken.name, broken)
    error = fails(source, tmp_path)
    assert error.message.startswith("passes break_back, break_there never come")
    assert reproduce.main([str(tmp_path / "reproducer")]) == 1


def test_a_pass_that_is_skipped_may_be_broken(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("match", "numbers"):
        broken = CASES[kind][0]
        monkeypatch.setitem(PASSES._entries, broken.name, broken)
    out = tmp_path / "fused.onnx"
    fuse_file(source, out, feeds=[SAMPLE], skip=["break_match", "break_numbers"])
    assert out.exists()


def test_a_wrong_one_inside_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[1,4] x, bool c) => (float[1,4] y) {
        s = Neg(x)
        t = If (c) <
            then_branch = a () => (float[1,4] u) { u = Softsign(s) },
            else_branch = b () => (float[1,4] r) { r = Cos(s) } >
        y = Sin(t) }"""
    )
    path = tmp_path / "in.onnx"
    onnx.save(proto, str(path))
    broken = entry("break_numbers", to_tanh)
    monkeypatch.setitem(PASSES._entries, broken.name, broken)
    feed = {"x": np.ones((1, 4), np.float32), "c": np.array(True)}
    with pytest.raises(ParityError, match="Softsign_u"):
        fuse_file(path, tmp_path / "out.onnx", feeds=[feed], reproducer=tmp_path / "reproducer")
    cut = onnx.load(str(tmp_path / "reproducer" / "graph.onnx"))
    assert [n.op_type for n in cut.graph.node] == ["If"]
    assert sorted(i.name for i in cut.graph.input) == ["c", "s"]
    assert reproduce.main([str(tmp_path / "reproducer")]) == 1


def test_what_is_no_reproducer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert reproduce.main([str(tmp_path)]) == 2
    (tmp_path / "reproducer.json").write_text('{"schema": 9, "passes": []}')
    assert reproduce.main([str(tmp_path)]) == 2
    assert "schema is 9" in capsys.readouterr().err


RECIPE = """\
schema: 1
name: net
model:
  onnx: {path: source.onnx}
  inputs: [{name: x, shape: [1, 8]}]
data:
  calibration: {arrays: data.npz}
  evaluation: {arrays: data.npz}
"""


def test_a_run_ends_with_3_and_says_where_the_reproducer_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "data.npz", x=SAMPLE["x"].repeat(4, 0))
    (tmp_path / "net.yaml").write_text(RECIPE)
    words = ("run", tmp_path / "net.yaml", "--until", "fuse", "--out", tmp_path / "out")
    broken = CASES["numbers"][0]
    monkeypatch.setitem(PASSES._entries, broken.name, broken)
    ended = edgefuse(*words)
    assert ended.code == 3, ended.err
    assert len(ended.messages) == 1
    assert "pass break_numbers changed the numbers at Softsign 'Softsign_d'" in ended.err
    folder = tmp_path / "out" / "reproducer"
    assert str(folder) in ended.err.replace("\n", "")
    assert reproduce.main([str(folder)]) == 1
    monkeypatch.delitem(PASSES._entries, broken.name)
    ended = edgefuse(*words)
    assert ended.code == 0, ended.err
    assert not folder.exists()
