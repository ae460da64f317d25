"""Models of text: tokens [B, T] → scores of the next token at each position, [B, T, tokens].

Both are written out in tensor operations that torch.func.vmap can batch. No position sees a later one, so padding at
the end of a window changes nothing before it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedflat.errors import UserError
from fedflat.models.layers import Shape


class CausalAttention(nn.Module):
    """Multi-head self-attention softmax(Q Kᵀ / √d) V, where each position attends to itself and to earlier ones.

    Args:
        width: the size of a position's vector, a multiple of `heads`.
        heads: the number of heads, each of size d = width / heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.o_proj((scores.masked_fill(later, -math.inf).softmax(-1) @ value).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """Return [B, T, width] as [B, heads, T, d]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class TransformerBlock(nn.Module):
    """x ← x + attention(norm(x)), then x ← x + mlp(norm(x)).

    Args:
        width: the size of a position's vector.
        heads: the number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TransformerBody(nn.Module):
    """Tokens [B, T] → vectors [B, T, width]: embeddings with learned positions, blocks, and a LayerNorm.

    Args:
        tokens: the number of tokens.
        length: the largest T.
        width: the size of a position's vector.
        depth: the number of blocks.
        heads: the number of attention heads of a block.
    """

    def __init__(self, tokens: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(tokens, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.embed(x) + self.position[: x.shape[1]]))


class LSTMBody(nn.Module):
    """Tokens [B, T] → the states h_1 … h_T of an LSTM, [B, T, width], which starts from 0.

    (i, f, g, o) = W e_t + U h_{t−1} + b;  c_t = σ(f) c_{t−1} + σ(i) tanh(g);  h_t = σ(o) tanh(c_t)

    Args:
        tokens: the number of tokens.
        width: the size of the state, and of the embedding e_t of a token.
    """

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.input, self.recurrent = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.input(self.embed(x))
        hidden = cell = gates.new_zeros(len(x), gates.shape[-1] // 4)
        states = []
        for now in gates.unbind(1):
            i, f, g, o = (now + self.recurrent(hidden)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, 1)


class LanguageModel(nn.Module):
    """forward(x) = head(body(x)): tokens [B, T] → vectors [B, T, width] → scores of the next token [B, T, tokens].

    Args:
        body: maps tokens to vectors.
        width: the size of a vector.
        tokens: the number of tokens.
    """

    def __init__(self, body: nn.Module, width: int, tokens: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def transformer(tokens: int, length: int, width: int, depth: int, heads: int) -> LanguageModel:
    """Return a causal transformer of any size.

    Args:
        tokens: the number of tokens.
        length: the most positions that it can take.
        width: the size of a position's vector, a multiple of `heads`.
        depth: the number of blocks.
        heads: the number of attention heads of a block.
    """
    return LanguageModel(TransformerBody(tokens, length, width, depth, heads), width, tokens)


def char_transformer(shape: Shape, classes: int) -> LanguageModel:
    """Return a causal transformer: two blocks of width 48 with two heads. Raises UserError for images."""
    return transformer(classes, _length("char-transformer", shape), 48, 2, 2)


def char_lstm(shape: Shape, classes: int) -> LanguageModel:
    """Return an LSTM of one layer with 64 units. Raises UserError for images."""
    _length("char-lstm", shape)
    return LanguageModel(LSTMBody(classes, 64), 64, classes)


def _length(model: str, shape: Shape) -> int:
    """Return the number of tokens of a sample; raise UserError if samples are images."""
    if shape[1:] != (1, 1):
        shown = "x".join(map(str, shape))
        raise UserError("model", model, f"cannot take input of shape {shown}, it needs text: tokens [n, length]")
    return shape[0]
