"""Every model of the zoo: how to build it, small for tests or whole, and a recipe for it.

``MODELS`` is the table. ``build`` gives the module with seeded weights and seeded BatchNorm
statistics: an untrained BatchNorm is nearly the identity, so that folding it proves nothing, and
with PyTorch's own weights what a deep network answers hardly depends on its input.
``write_recipe`` saves those weights and writes a recipe that loads them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from cases import pipeline
from torch import nn

Shape = tuple[int, ...]
_IMAGENET = {"image": (3, 224, 224)}
# No size of this picture at any stride equals a channel count: the converter mixes up equal axes.
_SMALL_PICTURE = {"image": (3, 72, 104)}


@dataclass(frozen=True)
class ZooModel:
    """One row.

    Args:
        callable: ``module:function``.
        small: arguments for tests.
        small_inputs: shapes for ``small`` by input name, without the batch.
        inputs: shapes for the whole model.
        outputs: names of the outputs, in the order of forward().
        full: arguments of the whole model.
    """

    name: str
    callable: str
    small: Mapping[str, Any]
    small_inputs: Mapping[str, Shape] = field(default_factory=lambda: _SMALL_PICTURE)
    inputs: Mapping[str, Shape] = field(default_factory=lambda: _IMAGENET)
    outputs: tuple[str, ...] = ("logits",)
    full: Mapping[str, Any] = field(default_factory=dict)

    def shapes(self, small: bool = True) -> Mapping[str, Shape]:
        return self.small_inputs if small else self.inputs

    def arguments(self, small: bool = True) -> dict[str, Any]:
        return dict(self.small if small else self.full)


_SMALL_VIT = {
    "image": 32,
    "patch": 8,
    "layers": 2,
    "width": 24,
    "heads": 2,
    "hidden": 40,
    "classes": 10,
}
_LEVELS = (8, 16, 32)

MODELS = (
    ZooModel(
        "mobilenet_v2",
        "edgefuse.zoo.mobilenet_v2:mobilenet_v2",
        {"width": 0.25, "classes": 10},
    ),
    ZooModel(
        "efficientnet_lite0",
        "edgefuse.zoo.efficientnet_lite0:efficientnet_lite0",
        {"classes": 10},
        {"image": (3, 160, 224)},
    ),
    ZooModel("resnet18", "edgefuse.zoo.resnet:resnet18", {"width": 0.125, "classes": 10}),
    ZooModel("resnet50", "edgefuse.zoo.resnet:resnet50", {"width": 0.125, "classes": 10}),
    ZooModel(
        "mobilenet_v3_large",
        "edgefuse.zoo.mobilenet_v3:mobilenet_v3_large",
        {"width": 0.25, "classes": 10},
    ),
    ZooModel(
        "mobilenet_v3_small",
        "edgefuse.zoo.mobilenet_v3:mobilenet_v3_small",
        {"width": 0.25, "classes": 10},
    ),
    ZooModel(
        "shufflenet_v2",
        "edgefuse.zoo.shufflenet_v2:shufflenet_v2",
        {"width": 0.5, "repeats": [2, 2, 2], "classes": 10},
    ),
    ZooModel(
        "unet",
        "edgefuse.zoo.unet:unet",
        {"width": 8, "depth": 2, "classes": 3},
        {"image": (3, 36, 52)},
        {"image": (3, 256, 256)},
    ),
    ZooModel(
        "convnext_tiny",
        "edgefuse.zoo.convnext:convnext_tiny",
        {"widths": [8, 16], "repeats": [1, 2], "layer_scale": 0.5, "classes": 10},
    ),
    ZooModel(
        "vit_tiny",
        "edgefuse.zoo.vit:vit_tiny",
        _SMALL_VIT,
        {"image": (3, 32, 32)},
    ),
    ZooModel(
        "vit_tiny_scaled_dot_product",
        "edgefuse.zoo.vit:vit_tiny",
        {**_SMALL_VIT, "scaled_dot_product": True},
        {"image": (3, 32, 32)},
        full={"scaled_dot_product": True},
    ),
    ZooModel(
        "ds_cnn",
        "edgefuse.zoo.ds_cnn:ds_cnn",
        {"channels": 8, "blocks": 2},
        {"features": (1, 49, 10)},
        {"features": (1, 49, 10)},
    ),
    ZooModel(
        "detector",
        "edgefuse.zoo.detection_head:detector",
        {"width": 8, "channels": 16, "anchors": 2, "classes": 7},
        {"image": (3, 96, 160)},
        {"image": (3, 320, 320)},
        tuple(f"{kind}_{level}" for level in _LEVELS for kind in ("boxes", "scores")),
    ),
)


def by_name(name: str) -> ZooModel:
    return next(model for model in MODELS if model.name == name)


def build(model: ZooModel, small: bool = True, seed: int = 0) -> nn.Module:
    """The module in eval mode, its weights and its BatchNorm statistics drawn from the seed."""
    module_name, _, function = model.callable.partition(":")
    torch.manual_seed(seed)
    module: nn.Module = getattr(importlib.import_module(module_name), function)(
        **model.arguments(small)
    )
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return module


def write_recipe(model: ZooModel, folder: Path, small: bool = True, **sections: Any) -> Path:
    """``folder/NAME.yaml``: the model with the weights of ``build``, eight random samples."""
    weights = folder / f"{model.name}.pth"
    torch.save(build(model, small).state_dict(), weights)
    shapes = model.shapes(small)
    source = {
        "torch": {
            "callable": model.callable,
            "arguments": model.arguments(small),
            "weights": {"path": weights.name},
        },
        "inputs": pipeline.inputs(shapes),
        "outputs": list(model.outputs),
    }
    return pipeline.write_recipe(
        folder,
        model.name,
        source,
        pipeline.samples(shapes, 8, 1),
        pipeline.samples(shapes, 8, 2),
        **sections,
    )
