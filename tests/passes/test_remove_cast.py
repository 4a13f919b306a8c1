import onnx
import pytest

from edgefuse.passes.remove_cast import PASS, _holds

from .check_pass import check_pass, onnx_model

NUMBER = {"float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
          "double": 11, "bfloat16": 16}  # fmt: skip


def casts(first: str, *rest: str) -> onnx.ModelProto:
    """x of the first type, cast to each of the others in turn."""
    steps = [f"v{i + 1} = Cast <to = {NUMBER[kind]}> (v{i})" for i, kind in enumerate(rest)]
    body = " ".join(["v0 = Identity(x)", *steps, f"y = Identity(v{len(rest)})"])
    return onnx_model(f"g ({first}[2,3] x) => ({rest[-1]}[2,3] y) {{ {body} }}")


def test_the_same_type_and_there_and_back() -> None:
    cast, kept = "Cast", ["Identity", "Identity"]
    check_pass(
        PASS,
        fires=[
            (casts("float", "float"), 1, kept),
            (casts("float16", "float", "float16"), 1, kept),
            (casts("float", "double", "float16"), 1, ["Identity", cast, "Identity"]),
            (casts("int32", "double", "float"), 1, ["Identity", cast, "Identity"]),
            (casts("bool", "int64", "float"), 1, ["Identity", cast, "Identity"]),
            (casts("float", "float", "double", "double", "float"), 3, kept),
        ],
    )
    check_pass(PASS, fires=[(casts("bfloat16", "float", "bfloat16"), 1, kept)], numbers=False)


def test_casts_that_lose_digits_stay() -> None:
    check_pass(
        PASS,
        ignores=[
            (casts("float", "float16", "float"), "from FLOAT to FLOAT16 may lose digits"),
            (casts("float", "int32", "float"), "from FLOAT to INT32 may lose digits"),
            (casts("int64", "float", "int64"), "from INT64 to FLOAT may lose digits"),
            (casts("int8", "float", "uint8"), "may overflow"),
            (casts("float", "double"), ""),
        ],
    )


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("FLOAT", "FLOAT16", True), ("FLOAT", "BFLOAT16", True), ("DOUBLE", "FLOAT", True),
        ("FLOAT16", "BFLOAT16", False), ("BFLOAT16", "FLOAT16", False), ("FLOAT", "DOUBLE", False),
        ("FLOAT16", "UINT8", True), ("BFLOAT16", "UINT8", True), ("FLOAT16", "INT16", False),
        ("FLOAT", "INT16", True), ("FLOAT", "INT32", False), ("DOUBLE", "INT32", True),
        ("DOUBLE", "INT64", False), ("INT16", "UINT8", True), ("INT8", "UINT8", False),
        ("UINT8", "INT8", False), ("UINT8", "BOOL", True), ("BOOL", "UINT8", False),
        ("INT64", "UINT64", False), ("FLOAT", "STRING", False), ("FLOAT8E4M3FN", "BOOL", False),
    ],
)  # fmt: skip
def test_which_types_hold_which(wide: str, narrow: str, holds: bool) -> None:
    assert _holds(wide, narrow) is holds


def test_cast_like() -> None:
    same = onnx_model("""g (float[3] x, float z) => (float[3] y) {
        t = CastLike(x, z)
        y = Relu(t) }""")
    other = onnx_model("""g (float[3] x, double z) => (double[3] y) {
        t = CastLike(x, z)
        y = Neg(t) }""")
    check_pass(PASS, fires=[(same, 1, ["Relu"])], ignores=[(other, "")], numbers=False)


def test_a_first_cast_that_is_read_too() -> None:
    other = onnx_model("""g (float16[3] x) => (double[3] y, float[3] z) {
        t = Cast <to = 1> (x)
        z = Neg(t)
        y = Cast <to = 11> (t) }""")
    back = onnx_model("""g (float16[3] x) => (float16[3] y, float[3] z) {
        t = Cast <to = 1> (x)
        z = Neg(t)
        b = Cast <to = 10> (t)
        y = Neg(b) }""")
    check_pass(PASS, fires=[(back, 1, ["Cast", "Neg", "Neg"])], ignores=[(other, "")])


def test_straight_from_input_to_output() -> None:
    model = onnx_model("g (float[3] x) => (float[3] y) { y = Cast <to = 1> (x) }")
    check_pass(PASS, ignores=[(model, "")])
