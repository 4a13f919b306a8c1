import numpy as np
import onnx
import pytest

from edgefuse.passes.replace_gather_view import PASS

from .check_pass import check_pass, onnx_model


def gather(indices: object, shape: str, *, length: str = "6", **more: object) -> onnx.ModelProto:
    array = np.array(indices)
    declared = f"[{','.join(map(str, array.shape))}]" if array.ndim else ""
    return onnx_model(
        f"""g (float[{length}] x, int64{declared} c) => (float{shape} y) {{
        y = Gather(x, c) }}""",
        c=array, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([0, 1, 2, 3, 4, 5], "[6]"),
        ([[[[0]], [[1]], [[2]], [[3]], [[4]], [[5]]]], "[1,6,1,1]"),
        ([[0, 1, 2], [3, 4, 5]], "[2,3]"),
        ([0, 1, 2, 3, -2, -1], "[6]"),
    ],
)
def test_fires(indices: object, shape: str) -> None:
    check_pass(PASS, fires=[(gather(indices, shape), 1, ["Reshape"])])


def test_one_element() -> None:
    check_pass(PASS, fires=[(gather([[0]], "[1,1]", length="1"), 1, ["Reshape"])])


def test_left_alone() -> None:
    rows = onnx_model(
        "g (float[3,2] x, int64[3] c) => (float[3,2] y) { y = Gather(x, c) }", c=[0, 1, 2]
    )
    check_pass(
        PASS,
        ignores=[
            (gather([0, 1, 2, 3, 5, 4], "[6]"), ""),
            (gather([0, 1, 2], "[3]"), ""),
            (gather([0, 1], "[2]", length="N"), ""),
            (gather([1], "[1]", length="2"), ""),
            (rows, ""),
            (gather([0, 1, 2, 3, 4, 5], "[6]", overridable=["c"]), "a caller may override it"),
        ],
    )
