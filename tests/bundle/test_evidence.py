"""evidence.json: verdicts of several targets, bound to one bundle; nothing passes without all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import edgefuse
from fake_stages import Fakes, fakes

from bundle.beside import judged, put_evidence
from edgefuse.bundle import evidence
from edgefuse.errors import EdgefuseError, GateFailed, UsageError
from edgefuse.recipe import Check, Gates

__all__ = ["fakes"]

A, B = "a" * 64, "b" * 64


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "net.bundle.tar"
    path.write_bytes(b"bundle")
    return path


def targets(folder: Path) -> list[str]:
    return list(json.loads((folder / "evidence.json").read_text())["targets"])


def test_targets_of_one_bundle_come_together(tmp_path: Path) -> None:
    for target in ("rpi4", "host"):
        evidence.record(tmp_path, A, "net", target, judged())
    assert targets(tmp_path) == ["host", "rpi4"]
    evidence.record(tmp_path, B, "net", "host", judged())
    assert targets(tmp_path) == ["host"], "another bundle starts anew"
    evidence.record(tmp_path, B, "other", "rpi4", judged())
    assert targets(tmp_path) == ["rpi4"], "another recipe too"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 3, "targets": {}}'])
def test_what_cannot_be_added_to_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence.json").write_text(text)
    evidence.record(tmp_path, A, "net", "host", judged())
    assert targets(tmp_path) == ["host"]


def test_a_verdict_read_from_the_store_changes_nothing(tmp_path: Path) -> None:
    evidence.record(tmp_path, A, "net", "host", judged())
    (tmp_path / "signature.json").write_text("signed")
    before = (tmp_path / "evidence.json").read_bytes()
    gates = [{**gate, "reused": True} for gate in judged()["gates"]]
    evidence.record(tmp_path, A, "net", "host", judged(gates=gates))
    assert (tmp_path / "evidence.json").read_bytes() == before
    assert (tmp_path / "signature.json").exists()
    evidence.record(tmp_path, A, "net", "host", judged(parity=[{"error": 1.0}]))
    assert not (tmp_path / "signature.json").exists(), "it was of other bytes"


def test_a_target_is_withdrawn_alone(tmp_path: Path) -> None:
    for target in ("host", "rpi4"):
        evidence.record(tmp_path, A, "net", target, judged())
    (tmp_path / "signature.json").write_text("signed")
    evidence.withdraw(tmp_path, "absent")
    assert targets(tmp_path) == ["host", "rpi4"] and (tmp_path / "signature.json").exists()
    evidence.withdraw(tmp_path, "host")
    assert targets(tmp_path) == ["rpi4"] and not (tmp_path / "signature.json").exists()
    evidence.withdraw(tmp_path, "rpi4")
    assert not (tmp_path / "evidence.json").exists()
    evidence.withdraw(tmp_path, "rpi4")


@pytest.mark.parametrize("target", ["host", None])
def test_unreadable_evidence_is_withdrawn_as_a_whole(tmp_path: Path, target: str | None) -> None:
    (tmp_path / "evidence.json").write_text("{")
    evidence.withdraw(tmp_path, target)
    assert not list(tmp_path.iterdir())


def test_figures_are_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        evidence.record(tmp_path, A, "net", "host", judged(parity=[{"error": math.nan}]))


def test_a_passed_bundle_is_cleared(bundle: Path) -> None:
    put_evidence(bundle, permissions=['check.permit_float: ["SOFTMAX"]'])
    cleared = evidence.require_passing(bundle, "host")
    assert cleared.target == "host" and len(cleared.sha256) == 64
    assert cleared.permissions == ('check.permit_float: ["SOFTMAX"]',)


GATES = judged()["gates"]
REFUSED: list[tuple[dict[str, Any], type[EdgefuseError], str]] = [
    ({"verdict": "incomplete"}, GateFailed, "the run ended with incomplete"),
    ({"verdict": "error"}, GateFailed, "the run ended with error"),
    ({"gates": []}, GateFailed, "not passed on host: accuracy, memory, latency"),
    ({"gates": GATES[:2]}, GateFailed, "not passed on host: latency"),
    ({"gates": [*GATES, {"name": "size", "verdict": "fail"}]}, GateFailed, "on host: size"),
    ({"gates": [*GATES, {**GATES[0], "verdict": "fail"}]}, GateFailed, "on host: accuracy"),
    ({"gates": [*GATES, {"name": "size", "verdict": ["pass"]}]}, GateFailed, "on host: size"),
    ({"bundle_sha256": A}, GateFailed, f"for bundle {A[:12]}, this one is"),
    ({"target": "rpi4"}, GateFailed, "judged on target rpi4, not on host"),
    ({"targets": {}}, GateFailed, "judged nowhere, not on host"),
    ({"targets": []}, UsageError, "incomplete"),
    ({"targets": {"host": 1}}, UsageError, "incomplete"),
    ({"gates": {"accuracy": "pass"}}, UsageError, "incomplete"),
    ({"gates": [3]}, UsageError, "incomplete"),
    ({"bundle_sha256": None}, UsageError, "incomplete"),
    ({"schema": 3}, UsageError, "schema 3, this edgefuse reads up to 2"),
    ({"schema": 1}, UsageError, "schema 1, this edgefuse reads 2"),
    ({"schema": True}, UsageError, "schema True"),
    ({"schema": None}, UsageError, "schema None"),
]


@pytest.mark.parametrize(("changes", "kind", "said"), REFUSED)
def test_nothing_else_is(bundle: Path, changes: dict[str, Any], kind: type, said: str) -> None:
    put_evidence(bundle, **changes)
    with pytest.raises(kind, match=said) as caught:
        evidence.require_passing(bundle, "host")
    assert caught.value.hint and caught.value.where


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"schema": 2, "schema": 2}'])
def test_evidence_that_is_none(bundle: Path, text: str) -> None:
    bundle.with_name("evidence.json").write_text(text)
    with pytest.raises(UsageError, match=r"no readable evidence\.json"):
        evidence.require_passing(bundle, "host")


def test_no_bundle_no_evidence(bundle: Path) -> None:
    with pytest.raises(UsageError, match="no readable"):
        evidence.require_passing(bundle, "host")
    with pytest.raises(UsageError, match="no such bundle"):
        evidence.require_passing(bundle.with_name("none"), "host")


def test_permissions_are_told_by_key() -> None:
    assert evidence.permissions(Check(permit_float=("SOFTMAX",))) == ['permit_float: ["SOFTMAX"]']
    assert evidence.permissions(Check()) == []


def test_a_gate_left_out_on_a_target_does_not_bar_that_target(bundle: Path) -> None:
    """By the recipe's explicit null, for this target alone; the others must still pass."""
    gates = Gates.model_validate({"targets": {"tflm": {"latency": None, "memory": None}}})
    told = evidence.waived(gates, "tflm")
    assert told == ["gates.targets.tflm.latency: null", "gates.targets.tflm.memory: null"]
    assert evidence.waived(gates, "host") == []
    passed = [gate for gate in judged()["gates"] if gate["name"] == "accuracy"]
    put_evidence(bundle, "tflm", gates=passed, permissions=told)
    assert evidence.require_passing(bundle, "tflm").permissions == tuple(told)
    put_evidence(bundle, "tflm", gates=passed, permissions=told[:1])
    with pytest.raises(GateFailed, match="gates not passed on tflm: memory"):
        evidence.require_passing(bundle, "tflm")
    put_evidence(bundle, "host", gates=passed, permissions=told)
    with pytest.raises(GateFailed, match="gates not passed on host: memory, latency"):
        evidence.require_passing(bundle, "host")


def test_runs_for_several_targets_into_one_folder(fakes: Fakes) -> None:
    (fakes.folder / "other.yaml").write_text(
        "name: other\nsummary: o\ntransport: local\nruntime: litert\nthreads: 2\n"
    )
    words = ("run", fakes.folder / "recipe.yaml", "--out", fakes.out, "-q")
    other = (*words, "--target", fakes.folder / "other.yaml")
    assert edgefuse(*words).code == edgefuse(*other).code == 0
    assert targets(fakes.out) == ["host", "other"]
    before = (fakes.out / "evidence.json").read_bytes()
    assert edgefuse(*words).code == 0
    assert (fakes.out / "evidence.json").read_bytes() == before, "all of it was cached"
    fakes.figures["gate_two"] = (9.0, 8.0)
    assert edgefuse(*other, "--measure").code == 1
    assert targets(fakes.out) == ["host"] and not (fakes.out / "tiny.bundle.tar").exists()
    assert edgefuse(*words).code == 0
    assert targets(fakes.out) == ["host"] and (fakes.out / "tiny.bundle.tar").exists()
