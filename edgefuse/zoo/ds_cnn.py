"""DS-CNN for keyword spotting (Zhang et al., 2017, "Hello Edge", arXiv:1711.07128), the size that
MLPerf Tiny takes: 64 channels, four depthwise separable blocks, convolutions with a bias before
each BatchNorm. Parameter names are our own.

Padding is TensorFlow's SAME, which here is asymmetric in time (4 before, 5 after).
Input: float32 [N, 1, 49, 10], 49 frames of 10 MFCC; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

_KERNEL = (10, 4)
_FRAMES, _COEFFICIENTS = 49, 10


def _same(size: int, kernel: int, stride: int = 2) -> tuple[int, int]:
    """Padding before and after, so that ceil(size / stride) values come out."""
    total = max(((size - 1) // stride) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _separable(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


class DSCNN(nn.Module):
    """The whole network.

    Args:
        channels: of every convolution.
        blocks: depthwise separable blocks.
        classes: number of logits.
    """

    def __init__(self, channels: int = 64, blocks: int = 4, classes: int = 12) -> None:
        super().__init__()
        above, below = _same(_FRAMES, _KERNEL[0])
        left, right = _same(_COEFFICIENTS, _KERNEL[1])
        self.stem = nn.Sequential(
            nn.ZeroPad2d((left, right, above, below)),
            nn.Conv2d(1, channels, _KERNEL, 2),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(*(_separable(channels) for _ in range(blocks)))
        self.dropout = nn.Dropout(0.4)
        self.pool = nn.AvgPool2d((-(-_FRAMES // 2), -(-_COEFFICIENTS // 2)))
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.dropout(self.blocks(self.stem(x))))
        logits: torch.Tensor = self.classifier(torch.flatten(y, 1))
        return logits


def ds_cnn(channels: int = 64, blocks: int = 4, classes: int = 12) -> nn.Module:
    """An eval-mode DS-CNN without weights."""
    return DSCNN(channels, blocks, classes).eval()
