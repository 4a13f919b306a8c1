"""A small U-Net (Ronneberger et al., 2015, arXiv:1505.04597) with BatchNorm.

Each level down doubles the channels and halves the size; each level up is a 2x2 transposed
convolution, BatchNorm and ReLU, joined with the encoder's tensor of the same size. Parameter names
are our own.
Input: float32 [N, 3, H, W], H and W multiples of 2**depth; output: float32 [N, classes, H, W]
logits.
"""

from __future__ import annotations

import torch
from torch import nn


def _conv_bn_relu(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(*_conv_bn_relu(inputs, outputs), *_conv_bn_relu(outputs, outputs))


class UNet(nn.Module):
    """The whole network.

    Args:
        width: channels of the first level.
        depth: how often the picture is halved.
        classes: channels of the output.
    """

    def __init__(self, width: int = 32, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _double(inputs, outputs) for inputs, outputs in zip([3, *widths], widths[:-1])
        )
        self.pool = nn.MaxPool2d(2)
        self.bottom = _double(widths[-2], widths[-1])
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(2 * outputs, outputs, 2, 2, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            )
            for outputs in reversed(widths[:-1])
        )
        self.join = nn.ModuleList(
            _double(2 * outputs, outputs) for outputs in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat((skips.pop(), up(x)), 1))
        logits: torch.Tensor = self.head(x)
        return logits


def unet(width: int = 32, depth: int = 4, classes: int = 2) -> nn.Module:
    """An eval-mode U-Net without weights."""
    return UNet(width, depth, classes).eval()
