"""PyTorch to a bundle: residual blocks, SiLU, and the Linear -> LayerNorm -> GELU head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .pipeline import Tflite, inputs, operators, run, samples, write_recipe

SHAPES = {"image": (3, 16, 16)}
NETS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False),
                                   nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False),
                                    nn.BatchNorm2d(width))

    def forward(self, x):
        return torch.relu(self.second(self.first(x)) + x)


def net():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), Block(8), nn.Conv2d(8, 16, 1), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 10),
    )
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -1, 1)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.uniform_(part.bias, -1, 1)
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch")
    (path / "case_nets.py").write_text(NETS)
    return path


def test_case_19_25_28_torch_to_a_bundle(folder: Path) -> None:
    model = {
        "torch": {"callable": "case_nets:net", "weights": "random"},
        "inputs": inputs(SHAPES, 2),
        "outputs": ["logits"],
    }
    data = samples(SHAPES, 40, seed=1), samples(SHAPES, 30, seed=2)
    sections = {
        # GELU is one operator from here on.
        "export": {"opset": 20},
        "contract": {"fused": {"fold_conv_batch_norm": 3, "fuse_residual_add": 1}},
        "gates": {"accuracy": {"min_sqnr_db": 12, "min_agreement_percent": 50}},
    }
    found = run(write_recipe(folder, "net", model, *data, **sections))
    assert found.report["verdict"] == "pass", found.error
    assert Tflite(found.int8_file).dtypes <= {"int8", "int32", "bool"}
    codes = operators(found.int8_file)
    assert {"GELU", "RSQRT", "LOGISTIC", "MAX_POOL_2D"} <= set(codes)
    assert codes.count("CONV_2D") == 4 and "RELU" not in codes
    rows = found.report["fusion"]["contract"]
    assert len(rows) >= 3 and all(row["ok"] for row in rows)
    manifest = json.loads((found.out / "bundle/manifest.json").read_text())
    assert manifest["weights"] == "random"
