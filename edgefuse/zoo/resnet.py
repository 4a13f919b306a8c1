"""ResNet-18 and ResNet-50 (He et al., 2015, arXiv:1512.03385, table 1).

ResNet-50 strides in the 3x3 convolution of a bottleneck, as torchvision does ("v1.5"). Parameter
names are torchvision's, so that its official ImageNet checkpoints load strictly.
Input: float32 [N, 3, 224, 224]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

_WIDTHS = (64, 128, 256, 512)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """A 1x1 projection where the shapes differ, else none."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; ReLU after the residual addition."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        total: torch.Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return total


class Bottleneck(nn.Module):
    """Reduce (1x1), filter (3x3), expand fourfold (1x1); ReLU after the residual addition."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        total: torch.Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return total


class ResNet(nn.Module):
    """The whole network.

    Args:
        block: BasicBlock or Bottleneck.
        repeats: blocks in each of the four stages.
        width: multiplier of every channel count.
        classes: number of logits.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        repeats: tuple[int, int, int, int],
        width: float = 1.0,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        widths = [max(1, round(base * width)) for base in _WIDTHS]
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = widths[0]
        stages: list[nn.Module] = []
        for stage, count in enumerate(repeats):
            blocks: list[nn.Module] = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, widths[stage], stride))
                channels = widths[stage] * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(y), 1))
        return logits


def resnet18(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """An eval-mode ResNet-18 without weights."""
    return ResNet(BasicBlock, (2, 2, 2, 2), width, classes).eval()


def resnet50(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """An eval-mode ResNet-50 without weights."""
    return ResNet(Bottleneck, (3, 4, 6, 3), width, classes).eval()
