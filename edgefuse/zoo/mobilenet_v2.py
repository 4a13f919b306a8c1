"""MobileNetV2 (Sandler et al., 2018, arXiv:1801.04381, table 2).

Parameter names are torchvision's, so that its official ImageNet checkpoint loads strictly.
Input: float32 [N, 3, 224, 224]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

# expansion factor, output channels, repeats, stride of the first repeat
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _channels(base: int, width: float) -> int:
    """Scaled channel count, a multiple of 8 and never more than 10% below the exact figure."""
    exact = base * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def _conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand (1x1), filter (3x3 depthwise), project (1x1, linear); residual where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_conv_bn_relu6(inputs, hidden, 1, 1, 1))
        layers.append(_conv_bn_relu6(hidden, hidden, 3, stride, hidden))
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """The whole network.

    Args:
        width: channel multiplier.
        classes: number of logits.
    """

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = _channels(32, width)
        last = _channels(1280, max(1.0, width))
        layers: list[nn.Module] = [_conv_bn_relu6(3, channels, 3, 2, 1)]
        for expansion, base, repeats, stride in _BLOCKS:
            outputs = _channels(base, width)
            for index in range(repeats):
                layers.append(
                    InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion)
                )
                channels = outputs
        layers.append(_conv_bn_relu6(channels, last, 1, 1, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.features(x).mean((2, 3))
        logits: torch.Tensor = self.classifier(pooled)
        return logits


def mobilenet_v2(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """An eval-mode MobileNetV2 without weights."""
    return MobileNetV2(width, classes).eval()
