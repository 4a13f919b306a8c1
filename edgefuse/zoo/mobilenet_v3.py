"""MobileNetV3 large and small (Howard et al., 2019, arXiv:1905.02244, tables 1 and 2).

Squeeze-and-excitation with a hard sigmoid; HardSwish in the deeper half. Parameter names are
torchvision's, so that its official ImageNet checkpoints load strictly.
Input: float32 [N, 3, 224, 224]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn

# kernel, expanded channels, output channels, squeeze-and-excitation, HardSwish (else ReLU), stride
_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def _channels(exact: float) -> int:
    """A multiple of 8, never more than 10% below the exact figure."""
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def _conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    activation: type[nn.Module] | None,
    stride: int = 1,
    groups: int = 1,
) -> nn.Module:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcitation(nn.Module):
    """x * hardsigmoid(fc2(relu(fc1(mean of x over the picture))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _channels(channels // 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.fc1(self.avgpool(x)))
        scale: torch.Tensor = self.scale_activation(self.fc2(y))
        return scale * x


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, squeeze and excite, project; residual where shapes allow."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: type[nn.Module],
        excites: bool,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if hidden != inputs:
            layers.append(_conv_bn(inputs, hidden, 1, activation))
        layers.append(_conv_bn(hidden, hidden, kernel, activation, stride, hidden))
        if excites:
            layers.append(SqueezeExcitation(hidden))
        layers.append(_conv_bn(hidden, outputs, 1, None))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.block(x)
        return y + x if self.residual else y


class MobileNetV3(nn.Module):
    """The whole network.

    Args:
        blocks: a table as above.
        last: channels of the hidden layer of the classifier.
        width: multiplier of every channel count.
        classes: number of logits.
    """

    def __init__(
        self,
        blocks: tuple[tuple[int, int, int, bool, bool, int], ...],
        last: int,
        width: float = 1.0,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        channels = _channels(16 * width)
        layers: list[nn.Module] = [_conv_bn(3, channels, 3, nn.Hardswish, 2)]
        for kernel, expanded, base, excites, hard_swish, stride in blocks:
            outputs = _channels(base * width)
            layers.append(
                InvertedResidual(
                    channels,
                    _channels(expanded * width),
                    outputs,
                    kernel,
                    stride,
                    nn.Hardswish if hard_swish else nn.ReLU,
                    excites,
                )
            )
            channels = outputs
        layers.append(_conv_bn(channels, 6 * channels, 1, nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        hidden = _channels(last * width)
        self.classifier = nn.Sequential(
            nn.Linear(6 * channels, hidden),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = torch.flatten(self.avgpool(self.features(x)), 1)
        logits: torch.Tensor = self.classifier(pooled)
        return logits


def mobilenet_v3_large(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """An eval-mode MobileNetV3-Large without weights."""
    return MobileNetV3(_LARGE, 1280, width, classes).eval()


def mobilenet_v3_small(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """An eval-mode MobileNetV3-Small without weights."""
    return MobileNetV3(_SMALL, 1024, width, classes).eval()
