"""FedAvgM (Hsu et al., 2019): momentum on the server.

down … | up … | client keeps … | server keeps …, e, m

m ← β m + (w − w⁺);  w ← w − η_s m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.options import Fraction, Positive
from fedflat.wrappers.wrapper import Wrapper, model, moved


class Momentum(NamedTuple):
    inner: Any
    exchange: Tensor
    momentum: Tensor

    @property
    def params(self) -> Tensor:
        return self.inner.params


@dataclass(frozen=True)
class ServerMomentum(Wrapper):
    """Heavy-ball momentum on the server."""

    citation: ClassVar[str] = """@article{hsu2019fedavgm,
  title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
  author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew},
  journal = {arXiv:1909.06335},
  year = {2019}
}"""

    beta: Fraction = 0.9
    """Momentum β of the server."""
    server_lr: Positive = 1.0
    """The server's learning rate η_s."""

    def init_server(self, params: Tensor) -> Momentum:
        """No momentum."""
        return Momentum(self.inner.init_server(params), params.new_zeros(()), torch.zeros_like(params))

    def settle(self, server: Momentum, inner: Any) -> Momentum:
        """Gather momentum, step along it."""
        w = model(server.inner)
        momentum = self.beta * server.momentum + w - model(inner)
        return Momentum(moved(inner, w - self.server_lr * momentum), server.exchange, momentum)
