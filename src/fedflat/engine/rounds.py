"""The round: choose a cohort, broadcast, train, update, evaluate; and what it asks of an engine.

Nothing here knows a method or an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.method import Method
from fedflat.core.random import choose_without_replacement, hash_words, purpose_key
from fedflat.core.state import ClientStore, pack_state, unpack_state
from fedflat.engine.contract import Engine, Job, Trained


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


def cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """The clients that take part in a round."""
    return choose_without_replacement(int(hash_words(seed, purpose_key("cohort"), round)), clients, size)


def play(
    method: Method,
    engine: Engine,
    trials: Sequence[Trial],
    round: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    sgd: SGD,
) -> list[Trained]:
    """One round of all trials; returns what the last exchange trained."""
    trained: list[Trained] = []
    for exchange in range(method.exchanges):
        trained = engine.train(ask(method, trials, round, exchange, cohorts, weights, population, sgd))
        settle(method, trials, trained)
    return trained


def ask(
    method: Method,
    trials: Sequence[Trial],
    round: int,
    exchange: int,
    cohorts: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    population: int,
    sgd: SGD,
) -> list[Job]:
    """What one exchange of a round asks of an engine."""
    return [
        Job(t.seed, round, exchange, who, weight, population, method.broadcast(t.server), t.clients, sgd)
        for t, who, weight in zip(trials, cohorts, weights, strict=True)
    ]


def settle(method: Method, trials: Sequence[Trial], trained: Sequence[Trained]) -> None:
    """Update every trial's server with what its cohort learned."""
    for trial, done in zip(trials, trained, strict=True):
        trial.server = method.update(trial.server, done.cohort)


@torch.no_grad()
def diverged(params: Tensor) -> bool:
    """Whether a model has left the finite numbers."""
    return not bool(torch.isfinite(params).all())
