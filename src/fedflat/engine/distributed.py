"""The engine for many GPUs or hosts: every rank trains its part of the cohort, one sum over ranks ends an exchange.

A client's state lives on rank (client mod ranks); it is lent to the rank that trains the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.local_training import finish_local_training, start_local_training
from fedflat.core.method import Cohort, Method
from fedflat.core.state import pack_state, rows_to_states, send_to_device, states_to_rows, tree_map
from fedflat.core.task import Task
from fedflat.data.batches import BatchSource
from fedflat.engine.batched import Batched
from fedflat.engine.contract import Job, Trained
from fedflat.engine.guests import Desk, Item, fetch, give_back, home, journeys
from fedflat.engine.packing import assign
from fedflat.engine.world import World


class Part(NamedTuple):
    """This rank's part of a job, and the positions of its clients in the whole cohort."""

    job: Job
    positions: list[int]
    desk: Desk


class Distributed:
    """Trains its share of every cohort with the batched engine and sums over ranks.

    The cohorts it gives back are whole and the same on every rank; `Trained.ends` are those of this rank's share only,
    in the cohort's order: nothing but measurements wants single models, and they would have to travel.
    """

    def __init__(self, method: Method, task: Task, source: BatchSource, world: World) -> None:
        self.method, self.source, self.world = method, source, world
        self.share = Batched(method, task, source)

    @property
    def lanes(self) -> int | None:
        """Lanes in which this rank trains, None before they are chosen."""
        return self.share.lanes

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose lanes for this rank's share of these rounds, taken as if every client could go anywhere."""
        mine = [
            [n for n, rank in zip(lengths, assign(lengths, self.world.size), strict=True) if rank == self.world.rank]
            for lengths in rounds
        ]
        self.share.prepare([lengths for lengths in mine if lengths] or [[1]])

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Run one exchange."""
        with torch.no_grad():
            ranks = self._ranks(jobs)
            routes = journeys(jobs, ranks, self.world.size)
            parts = self._parts(jobs, ranks, fetch(self.world, jobs, routes))
            trained = self.share.train([part.job for part in parts.values()]) if parts else []
            give_back(self.world, jobs, routes, _returning(parts))
            return self._conclude(jobs, parts, dict(zip(parts, trained, strict=True)))

    def _ranks(self, jobs: Sequence[Job]) -> dict[Item, int]:
        """Who trains whom; every rank comes to the same answer."""
        items = [(number, position) for number, job in enumerate(jobs) for position in range(len(job.clients))]
        clients = [jobs[number].clients[position] for number, position in items]
        seeds = [jobs[number].seed for number, _ in items]
        lengths = self.source.lengths(seeds, jobs[0].round, clients, jobs[0].exchange)
        homes = [home(client, self.world.size) for client in clients] if pack_state(jobs[0].states.initial) else []
        return dict(zip(items, assign(lengths, self.world.size, homes), strict=True))

    def _parts(self, jobs: Sequence[Job], ranks: Mapping[Item, int], guests: Mapping[Item, Tensor]) -> dict[int, Part]:
        """This rank's clients of each job; jobs without any are left out."""
        positions: dict[int, list[int]] = {}
        for (number, position), rank in ranks.items():
            if rank == self.world.rank:
                positions.setdefault(number, []).append(position)
        return {
            number: _part(
                jobs[number], mine, {i: guests[number, p] for i, p in enumerate(mine) if (number, p) in guests}
            )
            for number, mine in positions.items()
        }

    def _conclude(
        self, jobs: Sequence[Job], parts: Mapping[int, Part], trained: Mapping[int, Trained]
    ) -> list[Trained]:
        """The cohorts' means, from one sum over ranks of one vector."""
        shares = tuple(
            _share(job, parts[number].job, trained[number].cohort) if number in parts else self._nothing(job)
            for number, job in enumerate(jobs)
        )
        sums = self.world.total(states_to_rows(tree_map(lambda t: t[None], shares)))
        means = tree_map(lambda t: t[0], rows_to_states(shares, sums))
        ends = [trained[n].ends if n in trained else job.message.params[None][:0] for n, job in enumerate(jobs)]
        return [
            Trained(Cohort(mean, uniform, len(job.clients), job.population), end)
            for job, (mean, uniform), end in zip(jobs, means, ends, strict=True)
        ]

    def _nothing(self, job: Job) -> tuple[Any, Any]:
        """What a rank without clients adds: replies of zeros."""
        steps = torch.ones_like(job.sgd.lr)
        reply, _ = finish_local_training(
            self.method, job.sgd, start_local_training(job.message, job.states.initial), job.message, steps
        )
        zeros = tree_map(torch.zeros_like, reply)
        return zeros, zeros


def _part(job: Job, positions: list[int], guests: Mapping[int, Tensor]) -> Part:
    """The job of the clients at these positions."""
    desk = Desk(job.states, len(positions), guests)
    weights = job.weights[send_to_device(positions, job.weights.device)]
    clients = [job.clients[position] for position in positions]
    return Part(job._replace(clients=clients, weights=weights, states=desk), positions, desk)


def _returning(parts: Mapping[int, Part]) -> dict[Item, Tensor]:
    """What guests have learned."""
    return {
        (number, part.positions[place]): row
        for number, part in parts.items()
        for place, row in part.desk.returning().items()
    }


def _share(job: Job, part: Job, cohort: Cohort) -> tuple[Any, Any]:
    """A rank's contribution to the weighted and the plain means."""
    weight, number = part.weights.sum() / job.weights.sum(), len(part.clients) / len(job.clients)
    return tree_map(lambda t: t * weight.to(t.dtype), cohort.mean), tree_map(lambda t: t * number, cohort.uniform)
