"""A problem small enough for every method: four ragged clients, a network of 35 parameters with features and head."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflat.core.method import Method
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Task
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Dataset
from fedflat.engine import ENGINES
from fedflat.engine.aggregation import PLAIN_MEANS, Aggregation
from fedflat.engine.attacks import ReplyAttack
from fedflat.engine.rounds import Trial, play_round
from fedflat.methods.running_averages import LocalStatistics, ServerStatistics
from fedflat.models.layers import BatchNorm

RAGGED, EQUAL = (5, 3, 9, 4), (8, 8, 8, 8)
COHORTS = ([0, 2], [1, 3], [2, 1], [3, 0])


class Net(nn.Module):
    """4 → 4 (tanh) → 3."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class NormNet(Net):
    """The same with batch normalisation, which has no parameters of its own but keeps running averages."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm(4, affine=False, momentum=0.3)
        self.norm.track()

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.body(x)))


def task(method: Method | None = None) -> Task:
    """Return the problem's task; that of a method with running averages has batch normalisation."""
    return Task(NormNet() if isinstance(method, ServerStatistics | LocalStatistics) else Net())


AVERAGES = NormStatistics(torch.zeros(4), torch.ones(4))  # with which NormNet starts


def params(dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(35, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def client_data(
    sizes: Sequence[int] = RAGGED, batch_size: int = 4, dtype: torch.dtype = torch.float64
) -> ClientBatches:
    """Two epochs over `sizes` samples per client; every client sees its own labels most."""
    rng = np.random.default_rng(0)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = torch.from_numpy(np.where(rng.random(len(owner)) < 0.7, owner % 3, rng.integers(0, 3, len(owner))))
    x = torch.from_numpy(rng.normal(size=(len(owner), 4)) + 0.5 * owner[:, None]).to(dtype)
    return ClientBatches(Dataset("tiny", x, y, x, y, classes=3), parts, batch_size, 2, dtype=dtype)


def sgd(momentum: float = 0.5, dtype: torch.dtype = torch.float64) -> Optimiser:
    return Optimiser(torch.tensor(0.1, dtype=dtype), momentum, 1e-3)


def train(
    method: Method,
    engine: str = "sequential",
    rounds: range = range(4),
    source: ClientBatches | None = None,
    momentum: float = 0.5,
    weights: str = "examples",
    cohorts: Sequence[Sequence[int]] = COHORTS,
    trials: Sequence[Trial] | None = None,
    optimiser: Optimiser | None = None,
    aggregation: Aggregation = PLAIN_MEANS,
    attack: ReplyAttack | None = None,
    problem: Task | None = None,
) -> list[Trial]:
    """Play rounds with two seeds, which start from different models and have different cohorts in every round."""
    source, optimiser = source or client_data(), optimiser or sgd(momentum, source.dtype if source else torch.float64)
    trials = trials or [Trial(seed, method, params(source.dtype, seed), optimiser=optimiser) for seed in (0, 1)]
    runner = ENGINES[engine](method, problem or task(method), source)
    for r in rounds:
        chosen = [cohorts[(r + trial.seed) % len(cohorts)] for trial in trials]
        values = [source.sizes[list(who)].to(source.dtype) for who in chosen]
        values = values if weights == "examples" else [torch.ones_like(v) for v in values]
        place = (r, chosen, values, len(source.sizes))
        play_round(method, runner, trials, *place, optimiser, aggregation, attack)
    return list(trials)


@functools.cache
def packed(method: Method, rounds: int) -> list[dict[str, Tensor]]:
    """Return both trials after some rounds of the sequential engine, as named tensors."""
    return [trial.pack() for trial in train(method, rounds=range(rounds))]


def played(method: Method, rounds: int) -> list[Trial]:
    """Return the same as new trials, which the caller may change."""
    trials = [Trial(seed, method, torch.zeros_like(params())) for seed in (0, 1)]
    for trial, named in zip(trials, packed(method, rounds), strict=True):
        trial.unpack({name: tensor.clone() for name, tensor in named.items()})
    return trials


def models(method: Method, **setting: Any) -> Tensor:
    """Return the server's model after each of four rounds, [rounds, P]."""
    trials, after = [Trial(0, method, params())], []
    for r in range(4):
        train(method, rounds=range(r, r + 1), trials=trials, **setting)
        after.append(trials[0].server.params)
    return torch.stack(after)
