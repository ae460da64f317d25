"""The round: choose a cohort, broadcast, train, update, evaluate; and what it asks of an engine.

Nothing here knows a method or an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.method import Cohort, Method
from fedflat.core.random import choose_without_replacement, hash_words, purpose_key
from fedflat.core.state import ClientStore, pack_state, tree_map, unpack_state
from fedflat.core.task import Batch, Task
from fedflat.engine.kernels import use_lane_ops


class ClientStates(Protocol):
    """Where an engine finds what clients keep, and puts it; `initial` is the state of a client that never took part."""

    initial: Any

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of `clients`, stacked."""
        ...

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store stacked `states` of `clients`."""
        ...


class CohortJob(NamedTuple):
    """One trial's work in one exchange of a round."""

    seed: int
    round: int
    exchange: int
    clients: Sequence[int]
    weights: Tensor
    population: int
    message: Any
    states: ClientStates
    sgd: SGD


class TrainedCohort(NamedTuple):
    """The cohort's means, and the ends of local training [clients, P] for measurements."""

    cohort: Cohort
    ends: Tensor


class Engine(Protocol):
    """Trains the clients of several trials (one per seed) and stores what they keep."""

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Hear how many steps each client takes in some of the rounds to come."""
        ...

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        ...


def average_replies(replies: Any, job: CohortJob) -> Cohort:
    """Weighted and plain means of stacked replies."""
    weights = job.weights / job.weights.sum()
    mean = tree_map(lambda r: torch.tensordot(weights.to(r.dtype), r, 1), replies)
    return Cohort(mean, tree_map(lambda r: r.mean(0), replies), len(job.clients), job.population)


class Trial:
    """Everything that changes while one seed is trained: the server's state and those of `clients`, kept at `home`."""

    def __init__(
        self, seed: int, method: Method, params: Tensor, home: torch.device | None = None, clients: int | None = None
    ) -> None:
        self.seed = seed
        self.server = method.init_server(params)
        self.clients = ClientStore(method.init_client(params), home, clients)

    def pack(self) -> dict[str, Tensor]:
        """The trial as named tensors."""
        server = {f"server.{name}": tensor for name, tensor in pack_state(self.server).items()}
        return server | {f"clients.{name}": tensor for name, tensor in self.clients.pack().items()}

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Restore what `pack` gave."""
        parts: dict[str, dict[str, Tensor]] = {"server": {}, "clients": {}}
        for name, tensor in named.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        device = self.server.params.device
        self.server = unpack_state(self.server, {name: tensor.to(device) for name, tensor in parts["server"].items()})
        self.clients.unpack(parts["clients"])


def choose_cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """The clients that take part in a round."""
    return choose_without_replacement(int(hash_words(seed, purpose_key("cohort"), round)), clients, size)


def play_round(
    method: Method,
    engine: Engine,
    trials: Sequence[Trial],
    round: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    sgd: SGD,
) -> list[TrainedCohort]:
    """One round of all trials; returns what the last exchange trained."""
    trained: list[TrainedCohort] = []
    for exchange in range(method.exchanges):
        trained = engine.train(cohort_jobs(method, trials, round, exchange, cohorts, weights, population, sgd))
        update_servers(method, trials, trained)
    return trained


def cohort_jobs(
    method: Method,
    trials: Sequence[Trial],
    round: int,
    exchange: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    sgd: SGD,
) -> list[CohortJob]:
    """What one exchange of a round asks of an engine."""
    return [
        CohortJob(t.seed, round, exchange, who, weight, population, method.broadcast(t.server), t.clients, sgd)
        for t, who, weight in zip(trials, cohorts, weights, strict=True)
    ]


def update_servers(method: Method, trials: Sequence[Trial], trained: Sequence[TrainedCohort]) -> None:
    """Update every trial's server with what its cohort learned."""
    for trial, done in zip(trials, trained, strict=True):
        trial.server = method.update(trial.server, done.cohort)


@torch.no_grad()
def has_diverged(params: Tensor) -> bool:
    """Whether a model has left the finite numbers."""
    return not bool(torch.isfinite(params).all())


EVALUATION_BATCH = 2000  # samples evaluated at once


def evaluation_task(task: Task, device: torch.device) -> Task:
    """The task with which models are evaluated on `device`: on a GPU its convolutions are those of engine.kernels."""
    return Task(use_lane_ops(task.model), task.compute) if device.type == "cuda" else task


@torch.no_grad()
def evaluate(task: Task, params: Tensor, data: Batch, batch_size: int = EVALUATION_BATCH) -> tuple[float, float]:
    """Mean cross entropy and accuracy of the model `params` on `data`."""
    loss = correct = torch.zeros((), dtype=torch.float64, device=params.device)
    for start in range(0, len(data.y), batch_size):
        x, y, mask = (t[start : start + batch_size] for t in data[:3])
        batch = Batch(x, y, mask, None)
        logits = task.logits(params, batch)
        loss = loss + task.cross_entropy(logits, batch).double() * len(y)
        correct = correct + (logits.argmax(-1) == y).sum()
    loss, correct = torch.stack([loss, correct]).tolist()
    return loss / len(data.y), correct / len(data.y)


@torch.no_grad()
def predict_classes(task: Task, params: Tensor, data: Batch) -> Tensor:
    """The class that the model `params` takes each sample for."""
    batches = zip(*(t.split(EVALUATION_BATCH) for t in data[:3]), strict=True)
    return torch.cat([task.logits(params, Batch(x, y, mask, None)).argmax(-1) for x, y, mask in batches])
