"""EfficientNet-Lite0 (Tan and Le, 2019, arXiv:1905.11946, without squeeze-excitation, ReLU6).

Parameter names are those of the public PyTorch port whose checkpoint the recipe names, so that it
loads strictly. Padding is TensorFlow's SAME, which for a stride of 2 is asymmetric.
Input: float32 [N, 3, 224, 224], (x - 127) / 128 in RGB; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

_EPSILON = 1e-3
# kernel, output channels, repeats, stride of the first repeat, expansion factor
_BLOCKS = (
    (3, 16, 1, 1, 1),
    (3, 24, 2, 2, 6),
    (5, 40, 2, 2, 6),
    (3, 80, 3, 2, 6),
    (5, 112, 3, 1, 6),
    (5, 192, 4, 2, 6),
    (3, 320, 1, 1, 6),
)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_EPSILON, momentum=0.01)


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's SAME padding for inputs whose size the stride divides.

    A stride of 2 pads (k - 2) // 2 before and (k - 1) // 2 after, a stride of 1 k // 2 on both
    sides.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        total = max(kernel - stride, 0)
        before, after = total // 2, total - total // 2
        self.pad = nn.ZeroPad2d((before, after, before, after)) if total else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(self.pad(x))
        return y


class MBConv(nn.Module):
    """Inverted residual block; residual where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = SameConv2d(inputs, hidden, 1)
            self._bn0 = _norm(hidden)
        self._depthwise_conv = SameConv2d(hidden, hidden, kernel, stride, groups=hidden)
        self._bn1 = _norm(hidden)
        self._project_conv = SameConv2d(hidden, outputs, 1)
        self._bn2 = _norm(outputs)
        self._act = nn.ReLU6()
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._act(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._act(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """The whole network; ``classes`` logits."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, 32, 3, 2)
        self._bn0 = _norm(32)
        blocks: list[nn.Module] = []
        channels = 32
        for kernel, outputs, repeats, stride, expansion in _BLOCKS:
            for index in range(repeats):
                blocks.append(
                    MBConv(channels, outputs, kernel, stride if index == 0 else 1, expansion)
                )
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv2d(channels, 1280, 1)
        self._bn1 = _norm(1280)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(1280, classes)
        self._act = nn.ReLU6()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._act(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            y = block(y)
        y = self._act(self._bn1(self._conv_head(y)))
        logits: torch.Tensor = self._fc(self._dropout(y.mean((2, 3))))
        return logits


def efficientnet_lite0(classes: int = 1000) -> nn.Module:
    """An eval-mode EfficientNet-Lite0 without weights."""
    return EfficientNetLite0(classes).eval()
