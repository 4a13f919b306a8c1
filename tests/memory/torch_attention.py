"""Networks of attention: ViT and Swin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .torch_layers import Residual


class Attention(nn.Module):
    """Self-attention over [batch, tokens, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shaped = self.joined(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = shaped.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        result: Tensor = self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, width))
        return result


def _transformer_block(width: int, attention: nn.Module) -> nn.Module:
    mlp = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(width), attention)), Residual(nn.Sequential(*mlp))
    )


class VisionTransformer(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, width))
        blocks = (_transformer_block(width, Attention(width, heads)) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.place
        result: Tensor = self.head(self.blocks(tokens)[:, 0])
        return result


class Windows(nn.Module):
    """Attention within windows of [batch, rows, columns, width], shifted by a roll."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.attention = Attention(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        side = self.window
        x = x.reshape(batch, rows // side, side, columns // side, side, width)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, width)
        x = self.attention(x)
        x = x.reshape(batch, rows // side, columns // side, side, side, width)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class Merge(nn.Module):
    """Four neighbours become one place of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.joined = (
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, 2 * width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        result: Tensor = self.joined(self.norm(torch.cat(parts, -1)))
        return result


class Swin(nn.Module):
    def __init__(self, width: int = 96, repeats: Sequence[int] = (2, 2, 6, 2)) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        layers: list[nn.Module] = []
        for level, count in enumerate(repeats):
            if level:
                layers.append(Merge(width))
                width *= 2
            for index in range(count):
                shift = 3 if index % 2 and level < 3 else 0
                layers.append(_transformer_block(width, Windows(width, width // 32, 7, shift)))
        self.layers, self.last = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.layers(self.norm(self.patches(x).permute(0, 2, 3, 1))))
        result: Tensor = self.head(x.mean((1, 2)))
        return result
