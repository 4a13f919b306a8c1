"""Models that would end the process are refused: each is loaded in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from edgefuse.errors import SourceError, StageError
from edgefuse.graph.normalise import load_proto
from edgefuse.graph.verify import seeded_feed

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,2,2] y) '
CONV = HEAD + "<float[2,2,1,1] w = {1,2,3,4}> { y = Conv<strides=[0,2], group=%d>(x, w) }"
DIVIDED = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) '
    "<int64[2] a = {%s}, int64[2] b = {%s}> { c = %s(a, b)\n d = Cast<to=1>(c)\n y = Add(x, d) }"
)

FUNCTION = (
    '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[1,4,1,1] x) => (float[1,1,2,2] y) '
    "{ y = my.F<size=2>(x) } "
    '<domain: "my", opset_import: ["": 17, "my": 1]> F <size> (a) => (b) '
    "{ b = DepthToSpace<blocksize: int = @size>(a) }"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONV % 1, "Conv 'y': strides must be greater than 0, not [0, 2]"),
        (CONV.replace("strides=[0,2]", "strides=[2,2]") % 0, "group must be greater than 0"),
        (HEAD + "{ y = DepthToSpace<blocksize=0>(x) }", "blocksize must be greater than 0"),
        (DIVIDED % ("1,2", "3,0", "Div"), "divides integers by zero: its divisor is the"),
        (DIVIDED % ("1,2", "3,0", "Mod"), "Mod 'c' divides integers by zero"),
        (FUNCTION.replace("DepthToSpace<blocksize: int = @size>", "my.F<size=2>"),
         "function my.F calls itself"),
        (DIVIDED % ("1,-9223372036854775808", "1,-1", "Div"), "the lowest integer of its type"),
    ],
)  # fmt: skip
def test_what_divides_by_zero(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    words = [sys.executable, "-m", "edgefuse.cli", "explain", str(path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended
    assert said in ended.stderr and ended.stderr.count("edgefuse: ") == 1


@pytest.mark.parametrize("where", ["node", "branch", "function"])
def test_wherever_it_stands(where: str, tmp_path: Path) -> None:
    zero = "c = Constant<value = int64[1] {0}>()\n d = Div(c, c)"
    if where == "function":
        text = (
            '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[1] x) => (float[1] y) '
            '{ y = my.F(x) } <domain: "my", opset_import: ["": 17]> F (a) => (b) '
            f"{{ {zero}\n e = CastLike(d, a)\n b = Add(a, e) }}"
        )
    else:
        inner = f"{{ {zero}\n e = Cast<to=1>(d)\n %s = Add(x, e) }}"
        branch = f"y = If(k) <then_branch = t () => (float[1] p) {inner % 'p'}, else_branch = " \
                 "s () => (float[1] q) { q = Relu(x) }>"  # fmt: skip
        text = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x, bool k) => (float[1] y) '
        text += f"{{ {branch} }}" if where == "branch" else inner % "y"
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(SourceError, match="divides integers by zero"):
        load_proto(path)


def test_other_divisors_and_real_numbers_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for text in (
        DIVIDED % ("1,0", "3,-1", "Div"),
        (DIVIDED % ("1,2", "3,0", "Div")).replace("int64", "float"),
        FUNCTION,
    ):
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        assert load_proto(path).graph.node


def test_inputs_larger_than_any_memory(tmp_path: Path) -> None:
    """Shape inference would keep an entry for each of these 2^60 elements."""
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{1 << 60}] x) => (float[{1 << 60}] y) '
        "{ a = Relu(x)\n b = Abs(x)\n y = Add(a, b) }"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(SourceError, match="larger than any memory"):
        load_proto(path)


def test_more_axes_than_an_array_can_have() -> None:
    axes = ",".join(["1"] * 70)
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{axes}] x) => (float[{axes}] y) '
    proto = onnx.parser.parse_model(text + "{ y = Relu(x) }")
    with pytest.raises(StageError, match="of 70 axes cannot be sampled"):
        seeded_feed(proto, seed=0)


def test_branches_within_branches(tmp_path: Path) -> None:
    """Shape inference takes twice as long for each level."""
    body = "{ %s = Relu(x) }"
    for level in range(20):
        names = (f"t{level}", f"e{level}")
        then, other = (f"b{n} () => (float[1] {n}) " for n in names)
        first = body % names[0] if "%s" in body else body
        body = (
            f"{{ %s = If(k) <then_branch = {then}{first}, "
            f"else_branch = {other}{{ {names[1]} = Abs(x) }}> }}"
        )
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x, bool k) => (float[1] y) '
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text + body % "y").SerializeToString())
    with pytest.raises(SourceError, match="nested more than 16 deep"):
        load_proto(path)


def test_data_that_do_not_fill_their_tensor(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(CONV.replace("strides=[0,2]", "strides=[2,2]") % 1)
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.raw_data = bytes(4 * 5)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(SourceError, match="tensor 'w' cannot be read: cannot reshape"):
        load_proto(path)
