"""ConvNeXt (Liu et al., 2022, arXiv:2201.03545, table 9).

A block is x + layer_scale * linear(gelu(linear(layer_norm(depthwise 7x7 of x)))), the middle part
channels last. Parameter names are torchvision's, so that its official ImageNet checkpoints load
strictly.
Input: float32 [N, 3, 224, 224]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

_EPSILON = 1e-6


class Permute(nn.Module):
    """Axes in the given order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(self.order)


class ChannelsFirstLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of [N, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x.permute(0, 2, 3, 1))
        return y.permute(0, 3, 1, 2)


class Block(nn.Module):
    """One residual block."""

    def __init__(self, channels: int, layer_scale: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=_EPSILON),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.full((channels, 1, 1), layer_scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer_scale * self.block(x) + x


class ConvNeXt(nn.Module):
    """The whole network.

    Args:
        widths: channels of each stage.
        repeats: blocks in each stage.
        layer_scale: what the layer scales start from; 1e-6 hides a block until it is trained.
        classes: number of logits.
    """

    def __init__(
        self,
        widths: Sequence[int],
        repeats: Sequence[int],
        layer_scale: float = 1e-6,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelsFirstLayerNorm(widths[0]))
        ]
        for stage, (channels, count) in enumerate(zip(widths, repeats)):
            if stage:
                before = widths[stage - 1]
                layers.append(
                    nn.Sequential(ChannelsFirstLayerNorm(before), nn.Conv2d(before, channels, 2, 2))
                )
            layers.append(nn.Sequential(*(Block(channels, layer_scale) for _ in range(count))))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            ChannelsFirstLayerNorm(widths[-1]), nn.Flatten(1), nn.Linear(widths[-1], classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.avgpool(self.features(x)))
        return logits


def convnext_tiny(
    widths: Sequence[int] = (96, 192, 384, 768),
    repeats: Sequence[int] = (3, 3, 9, 3),
    layer_scale: float = 1e-6,
    classes: int = 1000,
) -> nn.Module:
    """An eval-mode ConvNeXt-Tiny without weights."""
    return ConvNeXt(widths, repeats, layer_scale, classes).eval()
