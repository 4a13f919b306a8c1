"""ShuffleNetV2 (Ma et al., 2018, arXiv:1807.11164, table 5).

The channel shuffle is the usual reshape, transpose, reshape. Parameter names are torchvision's, so
that its official ImageNet checkpoints load strictly.
Input: float32 [N, 3, 224, 224]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

_REPEATS = (4, 8, 4)
# width -> channels of the stem, of the three stages and of the last convolution
_CHANNELS = {
    0.5: (24, 48, 96, 192, 1024),
    1.0: (24, 116, 232, 464, 1024),
    1.5: (24, 176, 352, 704, 1024),
    2.0: (24, 244, 488, 976, 2048),
}


def _pointwise(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
    ]


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Channel g * (C / groups) + c goes to c * groups + g; [N, C, H, W]."""
    batch, channels, rows, columns = x.shape
    split = x.reshape(batch, groups, channels // groups, rows, columns)
    return split.transpose(1, 2).reshape(batch, channels, rows, columns)


class InvertedResidual(nn.Module):
    """Two branches, concatenated and shuffled; a stride of 1 splits the channels between them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        self.branch1 = nn.Sequential(
            *([] if self.splits else [*_depthwise(inputs, stride), *_pointwise(inputs, half)])
        )
        self.branch2 = nn.Sequential(
            *_pointwise(half if self.splits else inputs, half),
            *_depthwise(half, stride),
            *_pointwise(half, half),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1) if self.splits else (self.branch1(x), x)
        return channel_shuffle(torch.cat((left, self.branch2(right)), 1), 2)


class ShuffleNetV2(nn.Module):
    """The whole network.

    Args:
        channels: of the stem, of each stage, of the last convolution; stages' are even.
        repeats: blocks in each stage.
        classes: number of logits.
    """

    def __init__(
        self,
        channels: tuple[int, int, int, int, int],
        repeats: tuple[int, int, int] = _REPEATS,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, channels[0], 3, 2, 1, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(inplace=True),
        )
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = channels[0]
        stages: list[nn.Module] = []
        for outputs, count in zip(channels[1:4], repeats):
            blocks = [InvertedResidual(inputs, outputs, 2)]
            blocks += [InvertedResidual(outputs, outputs, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(*blocks))
            inputs = outputs
        self.stage2, self.stage3, self.stage4 = stages
        self.conv5 = nn.Sequential(*_pointwise(inputs, channels[4]))
        self.fc = nn.Linear(channels[4], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.maxpool(self.conv1(x))
        y = self.conv5(self.stage4(self.stage3(self.stage2(y))))
        logits: torch.Tensor = self.fc(y.mean((2, 3)))
        return logits


def shufflenet_v2(
    width: float = 1.0, repeats: tuple[int, int, int] = _REPEATS, classes: int = 1000
) -> nn.Module:
    """An eval-mode ShuffleNetV2 without weights; ``width`` is 0.5, 1.0, 1.5 or 2.0.

    Raises:
        ValueError: another width.
    """
    if width not in _CHANNELS:
        raise ValueError(f"width must be one of {sorted(_CHANNELS)}, not {width}")
    first, second, third = repeats
    return ShuffleNetV2(_CHANNELS[width], (first, second, third), classes).eval()
