"""The complete account of every model of the zoo: what became of each operator, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import pipeline
from command import edgefuse

from edgefuse.graph.account import FATES, account_protos
from edgefuse.graph.ledger import LedgerEntry
from edgefuse.graph.normalise import load_proto

from .models import MODELS, by_name, write_recipe

NAMES = [model.name for model in MODELS]
FOLLOWED = ("mobilenet_v3_small", "shufflenet_v2", "convnext_tiny", "vit_tiny")

pytestmark = pytest.mark.xdist_group("zoo_account")


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFUSE_CACHE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_is_accounted_for(folder: Path, name: str) -> None:
    made = pipeline.run(write_recipe(by_name(name), folder), until="fuse")
    assert made.report["exit_code"] == 0, made.error
    ledger = [LedgerEntry.from_json(entry) for entry in made.report["fusion"]["ledger"]]
    unfused, fused = made.out / f"{name}.onnx", made.file("_fused.onnx")
    rows = account_protos(load_proto(unfused), load_proto(fused), ledger)
    assert len({row.node for row in rows}) == len(rows) > 10
    assert {row.fate for row in rows} <= set(FATES) - {"unknown"}
    for row in rows:
        assert row.passes or row.reason, row
        assert row.reason or row.fate in ("fused", "folded", "removed"), row
    assert any(row.module for row in rows)


@pytest.mark.parametrize("name", FOLLOWED)
def test_every_int8_operator_is_explained(folder: Path, name: str) -> None:
    done = edgefuse("explain", write_recipe(by_name(name), folder), "--json")
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    assert document["counts"]["unexplained_int8_operators"] == document["counts"]["unknown"] == 0
    placed = [r for r in document["operators"] if r["ends_in"] or r["read_in_place"]]
    assert len(placed) == sum(r["fate"] != "removed" for r in document["operators"])


def test_a_norm_in_front_of_a_layer_is_refused_with_the_reason(folder: Path) -> None:
    recipe = write_recipe(by_name("convnext_tiny"), folder)
    document = json.loads(edgefuse("explain", recipe, "--refused", "--json").out)
    reasons = [e["reason"] for e in document["entries"] if e["pass"] == "fuse_norm_activation"]
    assert reasons and all("they are no constants" in reason for reason in reasons)
