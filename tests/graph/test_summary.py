import onnx.parser

from edgefuse.graph.normalise import prepare
from edgefuse.graph.summary import Figures, figures

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'


def of(text: str) -> Figures:
    return figures(prepare(onnx.parser.parse_model(HEADER + text)))


def test_bytes_and_peak_in_graph_order() -> None:
    """x lives until the Add reads it; a and b are the only intermediate tensors."""
    found = of(
        """g (float[1,8] x) => (float[1,8] y) {
        a = Relu(x)
        b = Neg(a)
        y = Add(b, x) }"""
    )
    assert found == Figures(operators=3, views=0, intermediate_bytes=64, peak_bytes=96)


def test_views_are_other_names_of_what_they_read() -> None:
    """The flattened value is a itself, which must live until the end."""
    found = of(
        """g (float[1,2,4] x) => (float[1,8] y) {
        a = Relu(x)
        v = Flatten(a)
        d = Dropout(v)
        b = Neg(d)
        c = Tanh(b)
        y = Add(c, v) }"""
    )
    assert found == Figures(operators=4, views=2, intermediate_bytes=96, peak_bytes=96)


def test_an_output_behind_a_view_is_no_intermediate_tensor() -> None:
    found = of(
        """g (float[1,2,4] x) => (float[1,8] y) {
        a = Relu(x)
        y = Flatten(a) }"""
    )
    assert found == Figures(operators=1, views=1, intermediate_bytes=0, peak_bytes=64)


def test_what_a_runtime_computes_once_is_no_operator() -> None:
    found = of(
        """g (float[2,4] x) => (float[2,2,2] y) <int64[1] zero = {0}, int64[2] rest = {2, 2}> {
        s = Shape(x)
        first = Gather <axis = 0> (s, zero)
        target = Concat <axis = 0> (first, rest)
        r = Reshape(x, target)
        y = Relu(r) }"""
    )
    assert found == Figures(operators=1, views=1, intermediate_bytes=0, peak_bytes=64)
