from __future__ import annotations

from typing import Any

import pytest

from edgefuse.recipe.fusion import Contract
from edgefuse.tflite.breach import breaches, told
from edgefuse.tflite.contract import Row

CONV = "fuse_conv_activation"
FOLD = "fold_conv_batch_norm"


def entry(name: str, module: str, node: str = "", **more: Any) -> dict[str, Any]:
    level = "kernel" if name.startswith("fuse") else "graph"
    found = {"pass": name, "status": "fired", "module": module, "node": node, "level": level}
    return found | {"nodes": [], "reason": "", "remedy": ""} | more


def row(group: str, hop: str = "", reason: str = "") -> Row:
    return Row(group, "", 0, "CONV_2D", 0, "CONV_2D", "RELU", "RELU", not hop, reason, hop=hop)


def judged(contract: dict[str, Any], ledger: list[dict[str, Any]], *rows: Row, **more: Any) -> str:
    facts: dict[str, Any] = {"landed": {}, "labels": [], "float_labels": []} | more
    return told(breaches(Contract(**contract), ledger=ledger, rows=rows, **facts))


def test_kept() -> None:
    ledger = [entry(CONV, "a", "g1"), entry(CONV, "b", "g2")]
    assert judged({"fused": {CONV: 2}}, ledger, row("g1"), row("g2")) == ""
    assert judged({"fused": {CONV: 1}}, ledger, row("g1", "convert", "split"), row("g2")) == ""
    assert judged({}, []) == ""


@pytest.mark.parametrize("hop", ["convert", "quantize"])
def test_lost_on_the_way_to_tflite(hop: str) -> None:
    ledger = [entry(CONV, "a", "g1"), entry(CONV, "b.0", "g2")]
    said = judged({"fused": {CONV: 2}}, ledger, row("g1"), row("g2", hop, "RELU was lost"))
    assert f"contract.fused.{CONV} is 1, the contract says 2: b.0 was lost at {hop}: " in said
    assert said.endswith("RELU was lost")


def test_folded_weights_that_no_operator_holds() -> None:
    ledger = [entry(FOLD, "a.1", "conv_1")]
    landed = {"conv_1": ["RESHAPE#0"]}
    assert "a.1 was lost at convert" in judged({"fused": {FOLD: 1}}, ledger, landed=landed)
    assert judged({"fused": {FOLD: 1}}, ledger, landed={"conv_1": ["CONV_2D#0"]}) == ""


def test_refused_and_never_there() -> None:
    refused = entry(CONV, "a", status="refused", reason="it is shared", remedy="do not share")
    said = judged({"fused": {CONV: 1}}, [refused])
    assert "a was lost at fuse: unfused to fused ONNX: it is shared" in said
    said = judged({"fused": {CONV: 1}}, [])
    assert "the contract says 1: lost at export: source to ONNX: the exported graph holds" in said


def test_a_node_stands_for_a_module_that_nobody_knows() -> None:
    refused = entry(CONV, "", nodes=["Conv_7"], status="refused", reason="it is shared")
    assert "Conv_7 was lost at fuse" in judged({"fused": {CONV: 1}}, [refused])
    said = judged({"fused": {CONV: 1}}, [entry(CONV, "", "g2")], row("g2", "quantize", "lost"))
    assert "g2 was lost at quantize" in said


def test_counts() -> None:
    contract = {"operators": {"CONV_2D": 2, "TRANSPOSE": 0}, "max_float_operators": 0}
    assert judged(contract, [], labels=["CONV_2D#0", "CONV_2D#1"]) == ""
    said = judged(
        contract,
        [],
        labels=["CONV_2D#0", "TRANSPOSE#1", "TRANSPOSE#2"],
        float_labels=["TRANSPOSE#2"],
        landed={"mean": ["TRANSPOSE#1", "MEAN#3"]},
        modules={"mean": "avgpool"},
    )
    assert said == (
        "contract.operators.CONV_2D is 1, the contract says 2; "
        "contract.operators.TRANSPOSE is 2, the contract says 0: "
        "TRANSPOSE#1 in avgpool, TRANSPOSE#2 between nodes; "
        "contract.max_float_operators is 1, the contract says 0: TRANSPOSE#2 between nodes"
    )
