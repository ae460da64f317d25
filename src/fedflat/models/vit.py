"""SL-ViT, a vision transformer for small data sets (Lee, Lee and Song, 2021), in the size that FedSOL uses.

It differs from other vision transformers in two ways. Shifted patch tokenisation: each patch also contains the borders
of its neighbours. Locality self-attention: the temperature is learned, and no token attends to itself.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.models.layers import Classifier, GreyToColour, Shape, check_image_shape

DIM, DEPTH, HEADS, HEAD_DIM, HIDDEN = 192, 9, 12, 64, 192  # of tokens, in blocks, of attention, of the MLP
GRID = 4  # patches along each side of the image
PATCHES = GRID * GRID


def add_shifted_copies(x: Tensor) -> Tensor:
    """Return images [B, C, H, W] and their copies moved by one pixel right, left, down and up, [B, 5C, H, W].

    Pixels that move in from outside are 0.
    """
    height, width = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1))
    corners = ((1, 1), (1, 0), (1, 2), (0, 1), (2, 1))
    return torch.cat([padded[:, :, r : r + height, c : c + width] for r, c in corners], dim=1)


def cut_patches(x: Tensor) -> Tensor:
    """Return the 16 patches of images [B, C, 4h, 4w], row by row and each as one vector, [B, 16, C h w]."""
    batch, channels, height, width = x.shape
    tiles = x.reshape(batch, channels, GRID, height // GRID, GRID, width // GRID)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(batch, PATCHES, -1)


class Attention(nn.Module):
    """Multi-head self-attention softmax(exp(τ) Q Kᵀ) V, with −∞ on the diagonal of exp(τ) Q Kᵀ.

    One learnable τ serves all heads; it starts at log(64^−½), the usual scale.
    """

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(-0.5 * math.log(HEAD_DIM)))
        self.qkv = nn.Linear(DIM, 3 * HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return how much each token attends to each other one, [B, heads, T, T]; rows sum to 1.

        Args:
            query: [B, heads, T, D].
            key: [B, heads, T, D].
        """
        scores = query @ key.transpose(-1, -2) * self.temperature.exp()
        diagonal = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        return scores.masked_fill(diagonal, -math.inf).softmax(-1)

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
    """Images [B, C, H, W] → the class token after all blocks, [B, 192].

    The tokens are a class token and the embedded patches, each with a position added. Class token and positions are
    learned and start from N(0, 1).
    """

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
    """Return SL-ViT: nine blocks on 17 tokens of dimension 192; the head is a LayerNorm and a linear layer.

    The images' sides must be multiples of 4. Raises UserError if they are not.
    """
    body = ViTBody(*check_image_shape("sl-vit", shape, min_side=GRID, multiple=GRID))
    return Classifier(body, nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, classes)))
