"""FedSWA (Caldarola et al., 2022): evaluate the running mean of the server's models.

down … | up … | client keeps … | server keeps …, e, w̄, n, t

w̄ ← (n w̄ + w⁺) / (n + 1) after rounds t = t₀, t₀ + k, …; training goes on from w⁺
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.options import Count
from fedflat.wrappers.wrapper import Wrapper


class Average(NamedTuple):
    inner: Any
    exchange: Tensor
    average: Tensor
    models: Tensor
    round: Tensor

    @property
    def params(self) -> Tensor:
        return torch.where(self.models > 0, self.average, self.inner.params)


@dataclass(frozen=True)
class Averaged(Wrapper):
    """Average the server's models over rounds."""

    citation: ClassVar[str] = """@inproceedings{caldarola2022fedasam,
  title = {Improving Generalization in Federated Learning by Seeking Flat Minima},
  author = {Caldarola, Debora and Caputo, Barbara and Ciccone, Marco},
  booktitle = {ECCV},
  year = {2022}
}"""

    start_round: Count = 45
    """Round t₀, counted from 1, whose model is the first in the mean."""
    every: Count = 1
    """k: every how many rounds a model enters the mean."""

    def init_server(self, params: Tensor) -> Average:
        """Nothing averaged."""
        zero = params.new_zeros(())
        return Average(self.inner.init_server(params), zero, torch.zeros_like(params), zero.clone(), zero.clone())

    def settle(self, server: Average, inner: Any) -> Average:
        """Count the round, take its model in."""
        round = server.round + 1
        taken = ((round >= self.start_round) & ((round - self.start_round) % self.every == 0)).to(round.dtype)
        models = server.models + taken
        average = server.average + taken * (inner.params - server.average) / models.clamp(min=1)
        return Average(inner, server.exchange, average, models, round)
