from __future__ import annotations

import onnx
import onnx.defs
import pytest
from passes.check_pass import onnx_model

from edgefuse.graph.account import IRREDUCIBLE, Account, account
from edgefuse.graph.normalise import prepare
from edgefuse.graph.pipeline import run_passes


def accounts(proto: onnx.ModelProto, *skip: str) -> dict[str, Account]:
    fused = prepare(proto)
    _, ledger = run_passes(fused, skip=skip)
    return {row.node: row for row in account(prepare(proto), fused, ledger.entries)}


def test_every_fate() -> None:
    proto = onnx_model(
        """g (float[1,4,6,6] x, float[4,4,3,3] w, float[4] s, float[4] b, float[4] m, float[4] v)
        => (float[1,4,2,2] y, float[1,4,4,4] t) {
        i = Identity(x)
        c = Conv(i, w)
        n = BatchNormalization(c, s, b, m, v)
        r = Relu(n)
        t = Conv <pads = [1, 1, 1, 1]> (r, w)
        u = Relu(t)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (u)
        y = Relu(p)
        dead = Neg(x) }""",
        w=1, s=2, b=3, m=4, v=[1.0, 2.0, 1.0, 0.5],
    )  # fmt: skip
    found = accounts(proto)
    assert {n: (row.fate, row.passes[-1:]) for n, row in found.items() if n != "Neg_dead"} == {
        "Identity_i": ("removed", ("remove_identity",)),
        "Conv_c": ("fused", ("fuse_conv_activation",)),
        "BatchNormalization_n": ("folded", ("fuse_conv_activation",)),
        "Relu_r": ("fused", ("fuse_conv_activation",)),
        "Conv_t": ("refused", ()),
        "Relu_u": ("refused", ()),
        "MaxPool_p": ("irreducible", ()),
        "Relu_y": ("irreducible", ()),
    }
    assert found["Conv_c"].into == found["Relu_r"].into == found["BatchNormalization_n"].into
    assert "is an output of the graph" in found["Conv_t"].reason
    assert found["MaxPool_p"].reason == IRREDUCIBLE["MaxPool"]


def test_a_skipped_pass_is_a_refusal_with_its_remedy() -> None:
    proto = onnx_model(
        """g (float[1,4,6,6] x, float[4,4,3,3] w) => (float[1,4,4,4] y) {
        c = Conv(x, w)
        y = Relu(c) }""",
        w=1,
    )
    row = accounts(proto, "fuse_conv_activation")["Conv_c"]
    assert (row.fate, row.remedy) == ("refused", "take the pass out of fuse.skip")


def test_an_operator_of_another_domain_is_unknown() -> None:
    proto = onnx_model(
        """g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }""",
    )
    proto.graph.node[0].domain = "com.example"
    proto.graph.node[0].op_type = "Mystery"
    proto.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    model = prepare(proto)
    (row,) = account(model, model, ())
    assert (row.fate, row.reason) == ("unknown", "no pass knows this operator")


@pytest.mark.parametrize("operator", sorted(IRREDUCIBLE))
def test_reasons_are_of_operators_that_exist(operator: str) -> None:
    assert onnx.defs.has(operator)


def test_every_operator_of_the_operator_sets_has_a_reason() -> None:
    supported = 21
    known = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.since_version <= supported and not schema.deprecated
    }
    assert known - set(IRREDUCIBLE) == {"Constant"}
