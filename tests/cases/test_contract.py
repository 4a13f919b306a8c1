"""A fusion is taken away on purpose: the run ends with 1 and says which, and at which hop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import edgefuse

from .pipeline import inputs, samples, write_recipe

SHAPES = {"image": (3, 16, 16)}
NETS = """
import torch
from torch import nn


def conv(i, o, groups=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, groups=groups, bias=False),
                         nn.BatchNorm2d(o), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv(3, 8)
        self.body = conv(8, 8, groups=8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        y = self.stem(x)
        return self.head(self.body(y).mean((2, 3)))


def net():
    return Net().eval()
"""
CONTRACT = {
    "fused": {"fold_conv_batch_norm": 2, "fuse_conv_activation": 2},
    "operators": {"CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "TRANSPOSE": 0},
    "max_float_operators": 0,
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract")
    (folder / "contract_nets.py").write_text(NETS)
    model: dict[str, Any] = {
        "torch": {"callable": "contract_nets:net", "weights": "random"},
        "inputs": inputs(SHAPES),
        "outputs": ["scores"],
    }
    data = samples(SHAPES, 30, seed=1), samples(SHAPES, 20, seed=2)
    return write_recipe(folder, "promised", model, *data, contract=CONTRACT)


def _run(recipe: Path, tmp_path: Path, *settings: str) -> tuple[int, str]:
    words = [w for setting in settings for w in ("--set", setting)]
    done = edgefuse("run", recipe, "--until", "check", "--out", tmp_path, "-q", *words)
    return done.code, done.err


def test_a_kept_contract_passes(recipe: Path, tmp_path: Path) -> None:
    code, text = _run(recipe, tmp_path)
    assert code == 0 and "edgefuse:" not in text


@pytest.mark.parametrize("skipped", ["fuse_conv_activation", "fold_conv_batch_norm"])
def test_a_skipped_pass_breaks_it(recipe: Path, tmp_path: Path, skipped: str) -> None:
    code, text = _run(recipe, tmp_path, f"fuse.skip=[{skipped}]")
    assert code == 1
    assert f"contract.fused.{skipped} is 0, the contract says 2" in text
    assert "stem.0 was lost at fuse: unfused to fused ONNX" in text
    assert "the recipe skips this pass (fuse.skip)" in text and "(and 1 more)" in text
    assert "edgefuse explain" in text


def test_a_candidate_that_never_was(recipe: Path, tmp_path: Path) -> None:
    code, text = _run(recipe, tmp_path, "contract.fused.fold_pad=1")
    assert code == 1 and "lost at export: source to ONNX: the exported graph" in text


def test_operators_are_counted(recipe: Path, tmp_path: Path) -> None:
    code, text = _run(recipe, tmp_path, "contract.operators.CONV_2D=2")
    assert code == 1 and "contract.operators.CONV_2D is 1, the contract says 2" in text


def test_an_operator_that_tflite_does_not_have(recipe: Path, tmp_path: Path) -> None:
    code, text = _run(recipe, tmp_path, "contract.operators.TRANSPOS=0")
    assert code == 2 and "TFLite has no operator 'TRANSPOS'" in text
    assert "did you mean 'TRANSPOSE'?" in text


def test_explain_follows_every_operator(recipe: Path) -> None:
    done = edgefuse("explain", recipe, "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["schema"] == 1
    assert document["counts"]["unknown"] == document["counts"]["unexplained_int8_operators"] == 0
    fields = {"pass", "module", "nodes", "status", "reason", "remedy", "saved_bytes", "ends_in"}
    assert all(fields <= set(entry) for entry in document["entries"])
    relus = [e for e in document["entries"] if e["pass"] == "fuse_conv_activation"]
    assert [(e["module"], e["status"]) for e in relus] == [("stem.0", "fired"), ("body.0", "fired")]
    ends = [e["ends_in"][-1].split("#")[0] for e in relus]
    assert ends == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    assert all(e["ends_in"][-1].endswith("+RELU") and e["saved_bytes"] > 0 for e in relus)
    fates = {row["operator"]: row["fate"] for row in document["operators"]}
    assert fates["BatchNormalization"] == "folded" and fates["Relu"] == "fused"
    assert all(row["ends_in"] for row in document["operators"] if row["fate"] != "removed")


def test_explain_as_text(recipe: Path) -> None:
    done = edgefuse("explain", recipe, "-q")
    assert done.code == 0 and done.err == ""
    assert "0 int8 operators unexplained" in done.out
    assert "Conv + BN + Relu" in done.out and "DEPTHWISE_CONV_2D#" in done.out
    one = edgefuse("explain", recipe, "-q", "--node", "body")
    assert "body.0" in one.out and "stem.0" not in one.out
    skipped = edgefuse(
        "explain", recipe, "-q", "--refused", "--set", "fuse.skip=[fold_conv_batch_norm]"
    )
    assert "fold_conv_batch_norm, stem.0, body.0: the recipe skips this pass" in skipped.out
    assert "remedy: take the pass out of fuse.skip" in skipped.out


def test_explain_of_an_unknown_node(recipe: Path) -> None:
    done = edgefuse("explain", recipe, "-q", "--node", "stem.9")
    assert done.code == 2 and "no node or module is called 'stem.9'" in done.err
    assert edgefuse("explain", recipe, "-q", "--node", "").code == 2
    assert "did you mean 'stem." in done.err
