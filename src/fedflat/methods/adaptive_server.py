"""FedAdam, FedYogi and FedAdagrad (Reddi et al., 2021, Algorithm 2): adaptive steps on the server.

down … | up … | client keeps … | server keeps …, e, m, v

m ← β₁ m + (1 − β₁)(w⁺ − w);  w ← w + η_s m / (√v + τ)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.methods.wrappers import Wrapper, training_params, with_training_params
from fedflat.options import Fraction, NonNegative, Positive


class AdaptiveServerState(NamedTuple):
    inner: Any
    exchange: Tensor
    m: Tensor
    v: Tensor

    @property
    def params(self) -> Tensor:
        return self.inner.params


@dataclass(frozen=True)
class Adaptive(Wrapper):
    """A step per coordinate; how v remembers tells the three apart."""

    citation: ClassVar[str] = """@inproceedings{reddi2021fedopt,
  title = {Adaptive Federated Optimization},
  author = {Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and
            Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
  booktitle = {ICLR},
  year = {2021}
}"""

    server_lr: Positive = 0.01
    """The server's learning rate η_s."""
    beta1: Fraction = 0.9
    """Decay β₁ of the mean change."""
    tau: Positive = 1e-3
    """Adaptivity τ: changes below it are not scaled up further."""
    v0: NonNegative | None = None
    """v before the first round; τ² unless given."""

    def init_server(self, params: Tensor) -> AdaptiveServerState:
        """m = 0 and v = v₀."""
        v = torch.full_like(params, self.tau**2 if self.v0 is None else self.v0)
        return AdaptiveServerState(self.inner.init_server(params), params.new_zeros(()), torch.zeros_like(params), v)

    def settle(self, server: AdaptiveServerState, inner: Any) -> AdaptiveServerState:
        """Update both moments, step."""
        w = training_params(server.inner)
        change = training_params(inner) - w
        m = self.beta1 * server.m + (1 - self.beta1) * change
        v = self.second(server.v, change.square())
        return AdaptiveServerState(
            with_training_params(inner, w + self.server_lr * m / (v.sqrt() + self.tau)), server.exchange, m, v
        )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the squared change."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """FedAdam: v ← β₂ v + (1 − β₂)(w⁺ − w)²."""

    beta2: Fraction = 0.99
    """Decay β₂ of the mean square."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """A moving mean."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """FedYogi: v ← v − (1 − β₂)(w⁺ − w)² sign(v − (w⁺ − w)²)."""

    beta2: Fraction = 0.99
    """Decay β₂ of the mean square."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Towards the square, by the square."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """FedAdagrad: v ← v + (w⁺ − w)²."""

    server_lr: Positive = 0.1
    """The server's learning rate η_s."""
    beta1: Fraction = 0.0
    """Decay β₁ of the mean change."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The sum."""
        return v + square
