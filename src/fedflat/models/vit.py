"""SL-ViT, a vision transformer for small data sets (Lee, Lee and Song, 2021), in the size FedSOL uses.

Shifted patch tokenisation (each patch also sees its neighbours' border) and locality self-attention (a learnable
temperature, and no token attends to itself).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.models.layers import Classifier, GreyToColour, Shape, image_sides

DIM, DEPTH, HEADS, HEAD_DIM, HIDDEN = 192, 9, 12, 64, 192


GRID = 4  # patches along each side of the image


PATCHES = GRID * GRID


def add_shifted_copies(x: Tensor) -> Tensor:
    """The image and its copies moved by one pixel right, left, down and up, zero-filled: [B, C, …] -> [B, 5C, …]."""
    height, width = x.shape[2:]
    framed = F.pad(x, (1, 1, 1, 1))
    corners = ((1, 1), (1, 0), (1, 2), (0, 1), (2, 1))
    return torch.cat([framed[:, :, r : r + height, c : c + width] for r, c in corners], dim=1)


def cut_patches(x: Tensor) -> Tensor:
    """Cut [B, C, 4h, 4w] into 16 flat patches, [B, 16, C h w], row by row."""
    batch, channels, height, width = x.shape
    tiles = x.reshape(batch, channels, GRID, height // GRID, GRID, width // GRID)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(batch, PATCHES, -1)


class Attention(nn.Module):
    """softmax(exp(τ) Q Kᵀ with −∞ on the diagonal) V, with one learnable τ for all heads, at first log(64^−½)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(-0.5 * math.log(HEAD_DIM)))
        self.qkv = nn.Linear(DIM, 3 * HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, heads, T, D] twice -> the attention [B, heads, T, T] each token pays to every other."""
        scores = query @ key.transpose(-1, -2) * self.temperature.exp()
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        return scores.masked_fill(itself, -math.inf).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4).unbind()
        return self.out((self.weights(query, key) @ value).transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    """x ← x + attention(norm(x)), then x ← x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(DIM), Attention())
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class ViTBody(nn.Module):
    """Patch tokens after a class token, with positions (both drawn from N(0, 1)); the class token is the feature."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        inputs = 15 * (height // GRID) * (width // GRID)
        self.colour = GreyToColour()
        self.embed = nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, DIM))
        self.position = nn.Parameter(torch.randn(1 + PATCHES, DIM))
        self.token = nn.Parameter(torch.randn(1, DIM))
        self.blocks = nn.Sequential(*(ViTBlock() for _ in range(DEPTH)))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(cut_patches(add_shifted_copies(self.colour(x))))
        tokens = torch.cat([self.token.expand(len(x), 1, DIM), tokens], dim=1)
        return self.blocks(tokens + self.position)[:, 0]


def sl_vit(shape: Shape, classes: int) -> Classifier:
    """Nine blocks on 17 tokens of dimension 192; the head is a LayerNorm and a linear layer."""
    body = ViTBody(*image_sides("sl-vit", shape, least=GRID, multiple=GRID))
    return Classifier(body, nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, classes)))
