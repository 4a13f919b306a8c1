"""A tiny torch network with BatchNorms that are no identity, and recipes beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

NETS = """
import torch
from torch import nn


def net():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -1, 1)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model
"""
INPUTS = [{"name": "image", "shape": [1, 3, 16, 16]}]


def written(folder: Path, name: str, model: dict[str, Any]) -> Path:
    """A recipe of a model on the samples in ``samples.npz``."""
    document = {
        "schema": 1,
        "name": name,
        "model": model,
        "data": {role: {"arrays": "samples.npz"} for role in ("calibration", "evaluation")},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path
