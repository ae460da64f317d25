"""What a round asks of an engine and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.method import Cohort
from fedflat.core.state import tree_map


class States(Protocol):
    """Where an engine finds what clients keep, and puts it; `initial` is the state of a client that never took part."""

    initial: Any

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of `clients`, stacked."""
        ...

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store stacked `states` of `clients`."""
        ...


class Job(NamedTuple):
    """One trial's work in one exchange of a round."""

    seed: int
    round: int
    exchange: int
    clients: Sequence[int]
    weights: Tensor
    population: int
    message: Any
    states: States
    sgd: SGD


class Trained(NamedTuple):
    """The cohort's means, and the ends of local training [clients, P] for measurements."""

    cohort: Cohort
    ends: Tensor


class Engine(Protocol):
    """Trains the clients of several trials (one per seed) and stores what they keep."""

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Hear how many steps each client takes in some of the rounds to come."""
        ...

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Run one exchange."""
        ...


def summarise(replies: Any, job: Job) -> Cohort:
    """Weighted and plain means of stacked replies."""
    weights = job.weights / job.weights.sum()
    mean = tree_map(lambda r: torch.tensordot(weights.to(r.dtype), r, 1), replies)
    return Cohort(mean, tree_map(lambda r: r.mean(0), replies), len(job.clients), job.population)
