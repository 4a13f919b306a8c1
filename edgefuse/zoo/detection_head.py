"""A one-stage detector: small backbone, feature pyramid, one head for all levels (Lin et al., 2017,
arXiv:1612.03144 and arXiv:1708.02002). Raw boxes and scores, without anchors and suppression: those
belong after the model. Parameter names are our own.

The head's weights are shared by three levels, so each of its parameters has three readers.
Input: float32 [N, 3, H, W], H and W multiples of 32. Outputs, for each level (strides 8, 16 and
32): boxes float32 [N, cells * anchors, 4], scores float32 [N, cells * anchors, classes] in 0..1.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _conv_bn_relu(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


class Head(nn.Module):
    """Boxes and scores of one level, [N, C, H, W] to [N, H W anchors, 4] and [.., classes]."""

    def __init__(self, channels: int, anchors: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.tower = nn.Sequential(*_conv_bn_relu(channels, channels))
        self.boxes = nn.Conv2d(channels, anchors * 4, 3, padding=1)
        self.scores = nn.Conv2d(channels, anchors * classes, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.tower(x)
        batch = x.shape[0]
        boxes = self.boxes(y).permute(0, 2, 3, 1).reshape(batch, -1, 4)
        scores = self.scores(y).permute(0, 2, 3, 1).reshape(batch, -1, self.classes)
        return boxes, torch.sigmoid(scores)


class Detector(nn.Module):
    """The whole network.

    Args:
        width: channels of the first level of the backbone; each further level doubles them.
        channels: of the pyramid and the head.
        anchors: boxes for each cell.
        classes: scores for each box.
    """

    def __init__(
        self, width: int = 32, channels: int = 64, anchors: int = 3, classes: int = 80
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv_bn_relu(3, width, 2), *_conv_bn_relu(width, width, 2))
        widths = [width << level for level in (1, 2, 3)]
        self.levels = nn.ModuleList(
            nn.Sequential(*_conv_bn_relu(inputs, outputs, 2), *_conv_bn_relu(outputs, outputs))
            for inputs, outputs in zip([width, *widths], widths)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(inputs, channels, 1) for inputs in widths)
        self.head = Head(channels, anchors, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.stem(x)
        features: list[torch.Tensor] = []
        for level, lateral in zip(self.levels, self.lateral):
            x = level(x)
            features.append(lateral(x))
        for finer in (1, 0):
            above = functional.interpolate(features[finer + 1], scale_factor=2.0, mode="nearest")
            features[finer] = features[finer] + above
        outputs: list[torch.Tensor] = []
        for feature in features:
            outputs += self.head(feature)
        return tuple(outputs)


def detector(width: int = 32, channels: int = 64, anchors: int = 3, classes: int = 80) -> nn.Module:
    """An eval-mode detector without weights."""
    return Detector(width, channels, anchors, classes).eval()
