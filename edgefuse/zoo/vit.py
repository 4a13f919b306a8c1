"""ViT-Tiny: the vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929) at DeiT-Ti's size
(Touvron et al., 2020, arXiv:2012.12877, table 1).

Parameter names are those of torchvision's VisionTransformer, whose attention is
nn.MultiheadAttention; here the attention is written out, softmax(q k^T / sqrt(d)) v per head, or
left to F.scaled_dot_product_attention.
Input: float32 [N, 3, image, image]; output: float32 [N, classes] logits.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_EPSILON = 1e-6


class SelfAttention(nn.Module):
    """Multi-head self-attention of [N, tokens, width], with the names of nn.MultiheadAttention.

    Args:
        scaled_dot_product: call F.scaled_dot_product_attention instead of writing it out.
    """

    def __init__(self, width: int, heads: int, scaled_dot_product: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scaled_dot_product = scaled_dot_product
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        size = width // self.heads
        query, key, value = (
            part.reshape(batch, tokens, self.heads, size).transpose(1, 2)
            for part in functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        )
        if self.scaled_dot_product:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = torch.matmul(query, key.transpose(-2, -1)) * size**-0.5
            mixed = torch.matmul(torch.softmax(scores, -1), value)
        joined = mixed.transpose(1, 2).reshape(batch, tokens, width)
        y: torch.Tensor = self.out_proj(joined)
        return y


class EncoderBlock(nn.Module):
    """LayerNorm before attention and before the MLP, a residual around each."""

    def __init__(self, width: int, heads: int, hidden: int, scaled_dot_product: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=_EPSILON)
        self.self_attention = SelfAttention(width, heads, scaled_dot_product)
        self.ln_2 = nn.LayerNorm(width, eps=_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(0.0),
            nn.Linear(hidden, width),
            nn.Dropout(0.0),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.ln_1(x))
        y: torch.Tensor = x + self.mlp(self.ln_2(x))
        return y


class Encoder(nn.Module):
    """Position embedding, the blocks, a last LayerNorm."""

    def __init__(
        self,
        tokens: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        scaled_dot_product: bool,
    ) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        self.layers = nn.Sequential()
        for index in range(layers):
            self.layers.add_module(
                f"encoder_layer_{index}", EncoderBlock(width, heads, hidden, scaled_dot_product)
            )
        self.ln = nn.LayerNorm(width, eps=_EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.ln(self.layers(x + self.pos_embedding))
        return y


class VisionTransformer(nn.Module):
    """The whole network.

    Args:
        image: rows and columns of the picture, a multiple of ``patch``.
        patch: rows and columns of a patch.
        layers: encoder blocks.
        width: features of a token, a multiple of ``heads``.
        heads: attention heads.
        hidden: features within the MLP.
        classes: number of logits.
        scaled_dot_product: as in SelfAttention.
    """

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        layers: int = 12,
        width: int = 192,
        heads: int = 3,
        hidden: int = 768,
        classes: int = 1000,
        scaled_dot_product: bool = False,
    ) -> None:
        super().__init__()
        if image % patch or width % heads:
            raise ValueError("image must be a multiple of patch, width of heads")
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        tokens = (image // patch) ** 2 + 1
        self.encoder = Encoder(tokens, layers, width, heads, hidden, scaled_dot_product)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(x.shape[0], -1, -1), patches), 1)
        logits: torch.Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


def vit_tiny(
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 192,
    heads: int = 3,
    hidden: int = 768,
    classes: int = 1000,
    scaled_dot_product: bool = False,
) -> nn.Module:
    """An eval-mode ViT-Tiny without weights."""
    model = VisionTransformer(
        image, patch, layers, width, heads, hidden, classes, scaled_dot_product
    )
    return model.eval()
