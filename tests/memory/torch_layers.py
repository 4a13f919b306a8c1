"""Layers that well-known networks share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def conv(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = nn.ReLU,
    padding: int | tuple[int, int] | None = None,
) -> nn.Sequential:
    """Convolution, BatchNorm, activation."""
    if padding is None:
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (sides[0] // 2, sides[1] // 2)
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*parts, *([activation()] if activation else []))


def classifier(channels: int, classes: int = 1000) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """act(body(x) + shortcut(x))."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, activation: bool = False
    ) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.activation = nn.ReLU() if activation else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return result


class Branches(nn.Module):
    """Several bodies side by side, their channels joined."""

    def __init__(self, *bodies: nn.Module) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([body(x) for body in self.bodies], 1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            activation(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * self.gate(x)
        return result
