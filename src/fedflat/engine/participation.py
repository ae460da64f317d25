"""Who takes part in each round, whose replies arrive, and how many local steps each client takes.

    chosen      the clients that the server asks, drawn among those that are available
    replying    the chosen clients whose replies arrive; the others drop out or miss the deadline
    step_counts how many local steps clients take; stragglers take fewer

Every answer is a function of (seed, round, client), made of hashes: the same in every engine, in a federation and after
a restart. A client whose reply does not arrive is not trained at all. Its state stays what it was, as in a federation,
where a client goes back to its last accepted reply.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from fedflat.core.optimiser import Optimiser
from fedflat.core.random import choose_without_replacement, hash_words, integer_below, purpose_key, uniform_from
from fedflat.core.state import send_to_device
from fedflat.data.client_files import Availability, ClientSetting

FIXED_SIZE = ("uniform", "weighted", "released")  # samplings that draw the same number of clients in every round


class LocalWork(NamedTuple):
    """How long a client trains in an exchange: `steps` steps, or else `epochs` passes over its samples."""

    epochs: int
    steps: int | None = None

    def step_count(self, samples: int, batch_size: int) -> int:
        """Return the number of steps of a client with this many samples."""
        return self.steps if self.steps and samples else -(-samples // batch_size) * self.epochs


def cohort_size(cohort: float, clients: int) -> int:
    """Return the number of clients in a round.

    Args:
        cohort: that number, if it is an int; a float is a share of all clients, at least one of them.
        clients: the number of all clients.
    """
    return cohort if isinstance(cohort, int) else max(1, round(cohort * clients))


class Participation:
    """Answers who takes part in a run, who replies and how many steps each client takes.

    Args:
        sizes: the number of samples of each client. A federation fills the list in as clients connect.
        cohort: clients per round, or their share of all clients.
        sampling: how they are drawn, a key of the table in docs/participation.md.
        availability: the rounds in which clients can be drawn; all of them in all rounds if None.
        dropout_rate: the probability that the reply of a chosen client never arrives.
        stragglers: the probability that a chosen client is slow in a round.
        straggler_work: the share of its local steps that a slow client takes; 0 if it misses the deadline.
        work: how long clients train; one epoch if None.
        batch_size: samples per step.
        settings: clients that differ from the others in lr or local work.
    """

    def __init__(
        self,
        sizes: list[int],
        cohort: float,
        sampling: str = "uniform",
        availability: Availability | None = None,
        dropout_rate: float = 0.0,
        stragglers: float = 0.0,
        straggler_work: float = 0.5,
        work: LocalWork | None = None,
        batch_size: int = 1,
        settings: Mapping[int, ClientSetting] | None = None,
    ) -> None:
        self.sizes, self.size, self.sampling = sizes, cohort_size(cohort, len(sizes)), sampling
        self.availability, self.dropout_rate = availability, dropout_rate
        self.stragglers, self.straggler_work = stragglers, straggler_work
        self.work, self.batch_size, self.settings = work or LocalWork(1), batch_size, settings or {}
        self._replying = lru_cache(maxsize=256)(self._draw_replying)  # a round is asked for several times

    @property
    def population(self) -> int:
        """The number of all clients."""
        return len(self.sizes)

    @property
    def loses_replies(self) -> bool:
        """Whether some of the chosen clients may not reply."""
        return self.dropout_rate > 0 or (self.stragglers > 0 and not self.straggler_work)

    @property
    def has_fixed_size(self) -> bool:
        """Whether the same number of clients replies in every round."""
        return self.sampling in FIXED_SIZE and self.availability is None and not self.loses_replies

    @property
    def expected_size(self) -> int | None:
        """The mean number of chosen clients under Poisson sampling, else None."""
        return self.size if self.sampling == "poisson" else None

    @property
    def smallest_size(self) -> int:
        """The number of clients that are chosen at least, where all are available; the mean under Poisson sampling."""
        groups = -(-self.population // self.size)
        return self.population // groups if self.sampling in ("cyclic", "round-robin") else self.size

    @property
    def largest_size(self) -> int:
        """The number of clients that a round has at most.

        Under Poisson sampling, where it may be any, it is five standard deviations above the mean.
        """
        spread = 5 * math.sqrt(self.size * (1 - self.size / self.population)) if self.sampling == "poisson" else 0.0
        return min(self.population, self.size + math.ceil(spread))

    def chosen(self, seed: int, round: int, present: Collection[int] | None = None) -> list[int]:
        """Return the clients that the server asks in a round, all of them different.

        They are fewer than the cohort's size, or none, where not enough clients are available.

        Args:
            seed: the trial's seed.
            round: the round, counted from 0.
            present: the clients that are connected, in a federation; all clients if None.
        """
        able = None if present is None else set(present)
        if self.availability is not None:
            available = self.availability.available(round)
            able = available if able is None else able & available
        if self.sampling == "poisson":
            return self._draw_each(seed, round, able)
        if self.sampling == "weighted":
            return self._draw_by_size(seed, round, able)
        if self.sampling in ("cyclic", "round-robin"):
            return self._take_turns(seed, round, able)
        return self._draw_cohort(seed, round, able)

    def replying(self, seed: int, round: int, present: Collection[int] | None = None) -> list[int]:
        """Return the chosen clients whose replies arrive. The arguments are those of `chosen`."""
        return list(self._replying(seed, round)) if present is None else self._draw_replying(seed, round, present)

    def _draw_replying(self, seed: int, round: int, present: Collection[int] | None = None) -> list[int]:
        chosen = self.chosen(seed, round, present)
        if not self.loses_replies:
            return chosen
        seeds = [seed] * len(chosen)
        lost = _events("lost reply", self.dropout_rate, seeds, round, chosen)
        late = _events("straggler", self.stragglers if not self.straggler_work else 0.0, seeds, round, chosen)
        return [client for client, gone, slow in zip(chosen, lost, late, strict=True) if not gone and not slow]

    def step_counts(self, seeds: Sequence[int], round: int, clients: Sequence[int]) -> list[int]:
        """Return how many local steps each client takes in an exchange; a straggler at least one.

        Args:
            seeds: the seed of each client's trial, as many as `clients`.
            round: the round, counted from 0.
            clients: the clients.
        """
        full = [self._work_of(client).step_count(self.sizes[client], self.batch_size) for client in clients]
        if not self.stragglers or not self.straggler_work:
            return full
        slow = _events("straggler", self.stragglers, seeds, round, clients)
        return [max(1, int(n * self.straggler_work + 0.5)) if s else n for n, s in zip(full, slow, strict=True)]

    def client_lrs(self, lr: float, clients: Sequence[int]) -> list[float]:
        """Return the learning rate of each client in the first round: its own one, or else `lr`."""
        own = [self.settings[client].lr if client in self.settings else None for client in clients]
        return [each or lr for each in own]

    def with_client_lrs(self, optimiser: Optimiser, lr: float, clients: Sequence[int]) -> Optimiser:
        """Return the optimiser with the learning rate of each client, as it is if none of them has its own.

        Args:
            optimiser: the optimiser of a round.
            lr: the learning rate of the first round for clients without their own. Schedules change all alike.
            clients: the clients of a cohort.
        """
        factors = [each / lr for each in self.client_lrs(lr, clients)] if self.settings else []
        if not any(factor != 1 for factor in factors):
            return optimiser
        return optimiser._replace(lr=optimiser.lr * send_to_device(factors, optimiser.lr.device, optimiser.lr.dtype))

    def _work_of(self, client: int) -> LocalWork:
        setting = self.settings.get(client)
        if setting is None or not (setting.local_epochs or setting.local_steps):
            return self.work
        return LocalWork(setting.local_epochs or 0, setting.local_steps)

    def _draw_cohort(self, seed: int, round: int, able: set[int] | None) -> list[int]:
        """The first clients of the round's random order that can take part."""
        count = self.size
        while True:
            order = choose_cohort(seed, round, self.population, count, self.sampling)
            found = order if able is None else [client for client in order if client in able]
            if len(found) >= self.size or count == self.population:
                return found[: self.size]
            count = min(self.population, 2 * count)

    def _draw_each(self, seed: int, round: int, able: set[int] | None) -> list[int]:
        """Every client on its own, with probability size / population."""
        keys = hash_words(seed, purpose_key("poisson"), round, torch.arange(self.population))
        drawn = torch.nonzero(integer_below(keys, self.population) < self.size)[:, 0].tolist()
        return [client for client in drawn if able is None or client in able]

    def _take_turns(self, seed: int, round: int, able: set[int] | None) -> list[int]:
        """The round's group. The groups of a pass are equal parts of a random order of all clients.

        All passes of "cyclic" have the same order; every pass of "round-robin" has its own.
        """
        groups = -(-self.population // self.size)
        turn, number = round % groups, 0 if self.sampling == "cyclic" else round // groups
        keys = hash_words(seed, purpose_key("turns"), number, torch.arange(self.population))
        bounds = (turn * self.population // groups, (turn + 1) * self.population // groups)
        group = keys.argsort(stable=True)[slice(*bounds)].tolist()
        return [client for client in group if able is None or client in able]

    def _draw_by_size(self, seed: int, round: int, able: set[int] | None) -> list[int]:
        clients = range(self.population) if able is None else sorted(able)
        sizes = {client: self.sizes[client] for client in clients if self.sizes[client]}
        return choose_by_size(int(hash_words(seed, purpose_key("weighted"), round)), sizes, self.size)


def choose_cohort(seed: int, round: int, clients: int, size: int, sampling: str = "uniform") -> list[int]:
    """Draw `size` different numbers below `clients`, each equally likely: the first ones of a random order of all.

    Args:
        seed: the seed; "released" does not use it.
        round: the round, counted from 0. The draw is a function of the arguments alone.
        clients: the number of all clients.
        size: clients per round.
        sampling: "uniform", or "released": numpy's generator seeded with the round, as FedSOL's released code draws.
    """
    if sampling == "released":
        return np.random.RandomState(round).choice(clients, size, replace=False).tolist()
    return choose_without_replacement(int(hash_words(seed, purpose_key("cohort"), round)), clients, size)


def choose_by_size(key: int, sizes: Mapping[int, int], count: int) -> list[int]:
    """Draw `count` different clients in proportion to their sizes; return all, if there are not more, in their order.

    Client k is drawn with probability count · n_k / n exactly, where n = Σ n_j. Clients for which that is 1 or more are
    taken for certain, and the others drawn in the same way for the places that are left. The draw is systematic
    sampling in a random order (W. G. Madow, On the theory of systematic sampling II, 1949): the clients are intervals
    of length count · n_k on a line, and those that contain one of the points u, u + n, u + 2n, … are drawn.

    Args:
        key: the hash that decides.
        sizes: the number of samples of each client, more than 0.
        count: how many to draw.
    """
    clients, n = torch.tensor(list(sizes), dtype=torch.int64), torch.tensor(list(sizes.values()), dtype=torch.int64)
    certain: list[int] = []
    while bool((sure := (count - len(certain)) * n >= n.sum()).any()):
        certain += clients[sure].tolist()
        clients, n = clients[~sure], n[~sure]
    if not len(clients):
        return sorted(certain)
    order = hash_words(key, clients).argsort(stable=True)
    total, point = int(n.sum()), int(hash_words(key, purpose_key("point"))) % int(n.sum())
    ends = ((count - len(certain)) * n[order].cumsum(0) + point) // total
    drawn = clients[order][ends.diff(prepend=ends.new_zeros(1)) > 0]
    return sorted([*certain, *drawn.tolist()])


def _events(purpose: str, rate: float, seeds: Sequence[int], round: int, clients: Sequence[int]) -> list[bool]:
    """Whether an event of probability `rate` happens to each client in a round."""
    if not rate or not clients:
        return [False] * len(clients)
    keys = hash_words(torch.tensor(list(seeds)), purpose_key(purpose), round, torch.tensor(list(clients)))
    return (uniform_from(keys, torch.float64) < rate).tolist()
