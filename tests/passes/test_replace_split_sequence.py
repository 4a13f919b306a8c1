import numpy as np
import onnx
import pytest

from edgefuse.passes.replace_split_sequence import PASS

from .check_pass import apply, check_pass, onnx_model


def split(
    *, index: int = 1, axis: int = 2, sizes: object = 3, width: str = "9", part: str = "3",
    declared: str = "int64 sizes", attributes: str = "", **more: object,
) -> onnx.ModelProto:  # fmt: skip
    given = ", sizes" if declared else ""
    listed = f", {declared}" if declared else ""
    constants = {"sizes": np.array(sizes)} if declared else {}
    return onnx_model(
        f"""g (float[2,5,{width}] x, int64 i{listed}) => (float[2,5,{part}] y) {{
        s = SplitToSequence <axis = {axis}{attributes}> (x{given})
        y = SequenceAt(s, i) }}""",
        i=np.array(index), **(constants | more),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("index", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("axis", [2, -1])
def test_equal_parts(index: int, axis: int) -> None:
    check_pass(PASS, fires=[(split(index=index, axis=axis), 1, ["Slice"])])


@pytest.mark.parametrize(("index", "part"), [(0, 4), (1, 4), (2, 1)])
def test_the_last_part_may_be_smaller(index: int, part: int) -> None:
    check_pass(PASS, fires=[(split(index=index, sizes=4, part=str(part)), 1, ["Slice"])])


@pytest.mark.parametrize(("index", "part"), [(0, 2), (1, 3), (2, 4), (-1, 4)])
def test_sizes_one_by_one(index: int, part: int) -> None:
    model = split(index=index, sizes=[2, 3, 4], part=str(part), declared="int64[3] sizes")
    check_pass(PASS, fires=[(model, 1, ["Slice"])])


def test_no_sizes() -> None:
    check_pass(PASS, fires=[(split(declared="", part="1"), 1, ["Slice"])])


def test_every_part_is_read() -> None:
    model = onnx_model(
        """g (float[2,9] x, int64 size, int64 i, int64 j) => (float[2,3] y) {
        s = SplitToSequence <axis = 1> (x, size)
        a = SequenceAt(s, i) b = SequenceAt(s, j) y = Mul(a, b) }""",
        size=np.array(3), i=np.array(0), j=np.array(2),
    )  # fmt: skip
    check_pass(PASS, fires=[(model, 2, ["Slice", "Slice", "Mul"])])
    assert apply(PASS, model).proto.graph.node[1].input[0] == "x"


def test_refusals() -> None:
    check_pass(
        PASS,
        ignores=[
            (split(width="W", sizes=1, part="1"), "the extent of axis 2 of x is not static"),
            (split(overridable=["sizes"]), "a caller may override it"),
            (split(overridable=["i"]), "the index of SequenceAt 'SequenceAt_y' (i) is also"),
        ],
    )


def test_parts_without_their_axis() -> None:
    model = onnx_model(
        """g (float[2,5,9] x, int64 i) => (float[2,5] y) {
        s = SplitToSequence <axis = 2, keepdims = 0> (x) y = SequenceAt(s, i) }""",
        i=np.array(1),
    )
    check_pass(PASS, ignores=[(model, "drops axis 2")])
