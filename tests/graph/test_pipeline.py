import subprocess
import sys
from dataclasses import replace

import onnx
import onnx.parser
import pytest

from edgefuse.errors import StageError
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import ordered, run_passes
from edgefuse.graph.rule import PASSES, Context, Match, Pass, Verdict

RELU = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }"""


def always(node: object, context: Context) -> Verdict:
    return Match((node,))  # type: ignore[arg-type]


def flip(found: Match, builder: object) -> None:
    node = found.nodes[0]
    other = "Neg" if node.op_type == "Relu" else "Relu"
    builder.node(other, node.inputs, replaces=(node,))  # type: ignore[attr-defined]


def entry(name: str, phase: str = "fold", after: tuple[str, ...] = ()) -> Pass:
    return Pass(name, "", phase, ("Relu",), always, flip, after)  # type: ignore[arg-type]


def test_order_of_the_registered_passes() -> None:
    order = [p.name for p in ordered(PASSES.all())]
    for earlier, later in (
        ("remove_identity", "fold_constants"),
        ("fold_constants", "replace_activation_spelling"),
        ("replace_activation_spelling", "fold_conv_batch_norm"),
        ("fold_conv_batch_norm", "fold_batch_norm_conv"),
        ("fold_batch_norm_conv", "fold_conv_affine"),
        ("fold_conv_affine", "replace_batch_norm"),
        ("replace_batch_norm", "fuse_residual_add"),
        ("fuse_residual_add", "fuse_conv_activation"),
    ):
        assert order.index(earlier) < order.index(later), f"{later} runs before {earlier}"


def test_order_is_by_phase_then_after_then_name() -> None:
    passes = [entry("d"), entry("c", after=("d",)), entry("b"), entry("z", "normalise")]
    assert [p.name for p in ordered({p.name: p for p in passes})] == ["z", "b", "d", "c"]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([entry("a", after=("b",)), entry("b", after=("a",))], "wait for each other"),
        ([entry("a", after=("nothing",))], "does not exist"),
        ([entry("a", after=("b",)), entry("b", "fuse")], "later phase"),
    ],
)
def test_orders_that_cannot_be(passes: list[Pass], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ordered({p.name: p for p in passes})


def test_passes_that_undo_each_other_end_with_an_error() -> None:
    model = prepare(onnx.parser.parse_model(RELU))
    with pytest.raises(StageError, match="still changes the graph"):
        run_passes(model, passes=[replace(entry("flip"), anchors=("*",))])
    there, back = entry("there"), replace(entry("back"), anchors=("Neg",))
    with pytest.raises(StageError, match="rounds"):
        run_passes(prepare(onnx.parser.parse_model(RELU)), passes=[there, back])


def test_skipped_passes_change_nothing_and_say_where_they_would_have_fired() -> None:
    model = prepare(onnx.parser.parse_model(RELU))
    _, ledger = run_passes(model, passes=[entry("flip")], skip=["flip"])
    assert [n.op_type for n in model.graph] == ["Relu"]
    (missed,) = ledger.entries
    assert (missed.status, missed.nodes) == ("refused", ("Relu_y",))
    assert "fuse.skip" in missed.reason and "fuse.skip" in missed.remedy


def test_the_catalogue_is_cheap_and_says_something() -> None:
    for name, found in PASSES.all().items():
        module = sys.modules[f"edgefuse.passes.{name}"]
        assert found.summary.endswith(".")
        assert "Problem:" in str(module.__doc__)
        assert "Rewrite" in str(module.__doc__)
    code = (
        "import sys; from edgefuse.graph.rule import PASSES; PASSES.all();"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxscript', 'onnxruntime', 'torch'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_group_is_built_around_what_can_still_be_folded() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[1,2,3,3] x) => (float[1,2,3,3] y)
    <float[2,2,1,1] w = {1, 2, 3, 4}, float c = {0.5}, float[2] g = {1, 2}, float[2] v = {1, 4}> {
        a = Conv(x, w)
        b = Mul(a, c)
        d = BatchNormalization(b, g, g, g, v)
        e = Add(d, c)
        f = BatchNormalization(e, g, g, g, v)
        y = Relu(f) }"""
    model, ledger = run_passes(prepare(onnx.parser.parse_model(text)))
    assert [n.op_type for n in model.graph] == ["ConvRelu"]
    assert ledger.fired("fold_conv_affine") == ledger.fired("fold_conv_batch_norm") == 2
    assert ledger.fired("replace_batch_norm") == 0
    assert not ledger.refused("fold_conv_batch_norm")


@pytest.mark.parametrize(
    ("body", "left", "bytes_saved"),
    [
        ("a = Cast <to = 11> (x) b = Cast <to = 1> (a) y = Relu(b)", 1, 3 * 96),
        ("a = Transpose(x) b = Transpose(a) y = Relu(b)", 1, 2 * 96),
        ("a = Transpose(x) b = Transpose(a) c = Relu(b) y = MatMul(c, a)", 3, 96),
    ],
)
def test_what_a_rewrite_leaves_unread_is_saved_too(body: str, left: int, bytes_saved: int) -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]>\ng (float[4,6] x) => (float[N,M] y) {\n'
    model, ledger = run_passes(
        prepare(onnx.parser.parse_model(text + body + "}")),
        passes=[p for p in ordered(PASSES.all()) if p.phase == "normalise"],
    )
    assert len(list(model.graph)) == left
    assert ledger.saved_launches == body.count("=") - body.count("to =") - left
    assert ledger.saved_bytes == bytes_saved
