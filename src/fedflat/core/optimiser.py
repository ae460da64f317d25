"""The clients' optimisers: what is done with the direction d that a method's step returns.

With learning rate η, momentum m and weight decay λ, and d shortened to norm c first where directions are clipped:

    sgd       b ← m b + d + λ w;   w ← w − η b
    nesterov  b ← m b + d + λ w;   w ← w − η (d + λ w + m b)
    adamw     a ← β₁ a + (1 − β₁) d;   v ← β₂ v + (1 − β₂) d²;   w ← w − η (â / (√v̂ + ε) + λ w),
              with â = a / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ) in the t-th step

Inside a round η may fall from step to step: with j of K steps taken, η_j = η (1 − j / K) (linear), or
η_j = η (1 + cos(π j / K)) / 2 (cosine).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.state import send_to_device
from fedflat.core.vectors import norm

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of AdamW, as in the paper and in torch

OptimiserName = Literal["sgd", "nesterov", "adamw"]
InRoundSchedule = Literal["constant", "linear", "cosine"]


class Optimiser(NamedTuple):
    """The clients' optimiser in one round.

    The four numbers are scalar tensors, or tensors [clients] with a number for each client of a cohort. They can change
    from round to round and differ from client to client without a step being traced again. The Python number 0 as
    momentum means that there is no buffer, 0 as weight decay that none is added, math.inf as clip that nothing is
    clipped.

    Args:
        lr: the learning rate η.
        momentum: m.
        weight_decay: λ. It acts at the unperturbed w and never enters d.
        clip: the largest norm c of d.
        name: the rule, one of those at the top of this file.
        in_round: how η falls inside a round.
        keeps_state: whether a client's b, or a, v and t, go on where it took part last; otherwise they start from 0.
    """

    lr: Tensor
    momentum: Tensor | float = 0.0
    weight_decay: Tensor | float = 0.0
    clip: Tensor | float = math.inf
    name: OptimiserName = "sgd"
    in_round: InRoundSchedule = "constant"
    keeps_state: bool = False

    @property
    def has_momentum(self) -> bool:
        """Whether there is a momentum buffer."""
        return isinstance(self.momentum, Tensor) or bool(self.momentum)

    @property
    def has_weight_decay(self) -> bool:
        """Whether λ w is added, which passes over all parameters even if λ is 0."""
        return isinstance(self.weight_decay, Tensor) or bool(self.weight_decay)

    @property
    def clips(self) -> bool:
        """Whether directions are clipped."""
        return isinstance(self.clip, Tensor) or self.clip < math.inf

    def numbers(self, clients: int) -> Tensor:
        """Return lr, momentum, weight_decay and clip of every client of a cohort, [clients, 4].

        Args:
            clients: the number of clients.
        """
        tensors = (v if isinstance(v, Tensor) else self.lr.new_full((), v) for v in self[:4])
        return torch.stack([t.expand(clients) for t in tensors], -1)

    def with_numbers(self, numbers: Tensor) -> Optimiser:
        """Return the optimiser with the numbers of one client, [4], or of several, [clients, 4]."""
        lr, momentum, weight_decay, clip = numbers.unbind(-1)
        return self._replace(
            lr=lr,
            momentum=momentum if self.has_momentum else 0.0,
            weight_decay=weight_decay if self.has_weight_decay else 0.0,
            clip=clip if self.clips else math.inf,
        )

    def of_clients(self, positions: list[int], clients: int) -> Optimiser:
        """Return the optimiser of some clients of a cohort, with numbers [positions].

        Args:
            positions: their positions in the cohort.
            clients: the size of the cohort.
        """
        return self.with_numbers(self.numbers(clients)[send_to_device(positions, self.lr.device)])

    def mean_lr(self, steps: Tensor) -> Tensor:
        """Return the mean Σ η_j / K of the learning rates of K steps: η, or η (K + 1) / (2 K) where it falls."""
        return self.lr if self.in_round == "constant" else self.lr * (steps + 1) / (2 * steps)


class AdamMoments(NamedTuple):
    """AdamW's averages of the direction and of its square, each [P], and the number t of steps, []."""

    first: Tensor
    second: Tensor
    steps: Tensor


def initial_moments(optimiser: Optimiser, params: Tensor) -> Any:
    """Return the optimiser's state before its first step: b, AdamMoments, or () if it needs none.

    Args:
        optimiser: the optimiser.
        params: a model [P], or several [lanes, P].
    """
    if optimiser.name == "adamw":
        return AdamMoments(torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(params.shape[:-1]))
    return torch.zeros_like(params) if optimiser.has_momentum else ()


def optimiser_step(
    optimiser: Optimiser, w: Tensor, moments: Any, direction: Tensor, step: Tensor, steps: Tensor
) -> tuple[Tensor, Any]:
    """Return the model after one step, [P], and the optimiser's next state.

    Args:
        optimiser: the optimiser, with the numbers of one client.
        w: the model, [P].
        moments: the optimiser's state.
        direction: the method's direction d, [P].
        step: the number j of steps taken before in this round, a scalar tensor; used if η falls inside a round.
        steps: the number K of steps in this round, a scalar tensor; likewise.
    """
    if optimiser.clips:
        direction = direction * (optimiser.clip / norm(direction)).clamp(max=1.0)
    lr = _step_lr(optimiser, step, steps)
    if optimiser.name == "adamw":
        change, moments = _adam(moments, direction)
        return _plus_product(w, -lr, _add_decay(optimiser, change, w)), moments
    decayed = _add_decay(optimiser, direction, w)
    if not optimiser.has_momentum:
        return _plus_product(w, -lr, decayed), moments
    buffer = _plus_product(decayed, optimiser.momentum, moments)
    if optimiser.name == "sgd":
        return _plus_product(w, -lr, buffer), buffer
    return _plus_product(w, -lr, _plus_product(decayed, optimiser.momentum, buffer)), buffer


def _add_decay(optimiser: Optimiser, direction: Tensor, w: Tensor) -> Tensor:
    """Return d + λ w."""
    return _plus_product(direction, optimiser.weight_decay, w) if optimiser.has_weight_decay else direction


def _plus_product(a: Tensor, factor: float | Tensor, b: Tensor) -> Tensor:
    """Return a + factor · b, in one pass over memory where the product alone would take another."""
    return torch.addcmul(a, factor, b) if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


def _step_lr(optimiser: Optimiser, step: Tensor, steps: Tensor) -> Tensor:
    """Return η_j."""
    if optimiser.in_round == "linear":
        return optimiser.lr * (1 - step / steps)
    if optimiser.in_round == "cosine":
        return optimiser.lr * (1 + torch.cos(math.pi * step / steps)) / 2
    return optimiser.lr


def _adam(moments: AdamMoments, direction: Tensor) -> tuple[Tensor, AdamMoments]:
    """Return â / (√v̂ + ε) and the next moments."""
    first = BETA1 * moments.first + (1 - BETA1) * direction
    second = BETA2 * moments.second + (1 - BETA2) * direction.square()
    t = moments.steps + 1
    scale = (second / (1 - BETA2**t)).sqrt() + EPSILON
    return first / (1 - BETA1**t) / scale, AdamMoments(first, second, t)
