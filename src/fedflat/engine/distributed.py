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
from fedflat.engine.lane_packing import assign_ranks
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.rounds import ClientStates, CohortJob, TrainedCohort

Item = tuple[int, int]  # number of the job, position in its cohort


def home_rank(client: int, ranks: int) -> int:
    """The rank that keeps a client's state."""
    return client % ranks


class StateTransfer(NamedTuple):
    """A state goes from rank `source` to rank `target`."""

    source: int
    target: int


class BorrowedStates:
    """The states of a rank's part of a cohort: its own clients' in its store, its guests' (by position) on loan."""

    def __init__(self, store: ClientStates, size: int, guests: Mapping[int, Tensor]) -> None:
        self.store, self.initial, self.guests = store, store.initial, list(guests)
        self.own = [position for position in range(size) if position not in guests]
        self.loan = torch.stack(list(guests.values())) if guests else None

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of all clients of the part, in their order."""
        states = self.store.gather(clients)
        if self.loan is None:
            return states
        loan = rows_to_states(self.initial, self.loan)
        return tree_map(lambda all, new: all.index_copy(0, send_to_device(self.guests, all.device), new), states, loan)

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Keep what own clients have learned; that of the guests is ready to go home."""
        if self.own:
            own = tree_map(lambda all: all[send_to_device(self.own, all.device)], states)
            self.store.scatter([clients[position] for position in self.own], own)
        if self.guests:
            self.loan = states_to_rows(tree_map(lambda all: all[send_to_device(self.guests, all.device)], states))

    def returning(self) -> dict[int, Tensor]:
        """The guests' states by position."""
        return {} if self.loan is None else dict(zip(self.guests, self.loan.unbind(), strict=True))


def plan_transfers(jobs: Sequence[CohortJob], ranks: Mapping[Item, int], size: int) -> dict[Item, StateTransfer]:
    """Who is trained away from home; nobody where clients keep nothing."""
    if not pack_state(jobs[0].states.initial):
        return {}
    homes = {item: home_rank(jobs[item[0]].clients[item[1]], size) for item in ranks}
    return {item: StateTransfer(homes[item], rank) for item, rank in ranks.items() if rank != homes[item]}


def fetch_states(
    world: ProcessGroup, jobs: Sequence[CohortJob], routes: Mapping[Item, StateTransfer]
) -> dict[Item, Tensor]:
    """The states of this rank's guests; those of its own clients who are guests elsewhere leave."""
    rows: dict[Item, Tensor] = {}
    for number, job in enumerate(jobs):
        items = [item for item, route in routes.items() if item[0] == number and route.source == world.rank]
        if items:
            states = job.states.gather([job.clients[position] for _, position in items])
            rows |= zip(items, states_to_rows(states).unbind(), strict=True)
    return exchange_vectors(world, jobs, routes, rows)


def return_states(
    world: ProcessGroup, jobs: Sequence[CohortJob], routes: Mapping[Item, StateTransfer], rows: Mapping[Item, Tensor]
) -> None:
    """The same ways in the other direction: guests' states leave, those of this rank's clients are stored."""
    back = {item: StateTransfer(route.target, route.source) for item, route in routes.items()}
    for (number, position), row in exchange_vectors(world, jobs, back, rows).items():
        job = jobs[number]
        job.states.scatter([job.clients[position]], rows_to_states(job.states.initial, row[None]))


def exchange_vectors(
    world: ProcessGroup, jobs: Sequence[CohortJob], routes: Mapping[Item, StateTransfer], rows: Mapping[Item, Tensor]
) -> dict[Item, Tensor]:
    """Carry states, as vectors, along their routes: takes those that leave here, gives those that arrive."""
    leaving: dict[int, list[Tensor]] = {}
    arriving: dict[int, list[Item]] = {}
    for item, route in routes.items():
        if route.source == world.rank:
            leaving.setdefault(route.target, []).append(rows[item])
        elif route.target == world.rank:
            arriving.setdefault(route.source, []).append(item)
    like = pack_state(jobs[0].states.initial)
    width = sum(tensor.numel() for tensor in like.values())
    room = {rank: next(iter(like.values())).new_empty(len(items), width) for rank, items in arriving.items()}
    got = world.move({rank: torch.stack(states) for rank, states in leaving.items()}, room)
    return {item: row for rank, items in arriving.items() for item, row in zip(items, got[rank], strict=True)}


class RankShare(NamedTuple):
    """This rank's part of a job, and the positions of its clients in the whole cohort."""

    job: CohortJob
    positions: list[int]
    desk: BorrowedStates


class Distributed:
    """Trains its share of every cohort with the batched engine and sums over ranks.

    The cohorts it gives back are whole and the same on every rank; `Trained.ends` are those of this rank's share only,
    in the cohort's order: nothing but measurements wants single models, and they would have to travel.
    """

    def __init__(self, method: Method, task: Task, source: BatchSource, world: ProcessGroup) -> None:
        self.method, self.source, self.world = method, source, world
        self.share = Batched(method, task, source)

    @property
    def lanes(self) -> int | None:
        """Lanes in which this rank trains, None before they are chosen."""
        return self.share.lanes

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose lanes for this rank's share of these rounds, taken as if every client could go anywhere."""
        mine = [
            [
                n
                for n, rank in zip(lengths, assign_ranks(lengths, self.world.size), strict=True)
                if rank == self.world.rank
            ]
            for lengths in rounds
        ]
        self.share.prepare([lengths for lengths in mine if lengths] or [[1]])

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        with torch.no_grad():
            ranks = self._ranks(jobs)
            routes = plan_transfers(jobs, ranks, self.world.size)
            parts = self._parts(jobs, ranks, fetch_states(self.world, jobs, routes))
            trained = self.share.train([part.job for part in parts.values()]) if parts else []
            return_states(self.world, jobs, routes, _returning(parts))
            return self._conclude(jobs, parts, dict(zip(parts, trained, strict=True)))

    def _ranks(self, jobs: Sequence[CohortJob]) -> dict[Item, int]:
        """Who trains whom; every rank comes to the same answer."""
        items = [(number, position) for number, job in enumerate(jobs) for position in range(len(job.clients))]
        clients = [jobs[number].clients[position] for number, position in items]
        seeds = [jobs[number].seed for number, _ in items]
        lengths = self.source.lengths(seeds, jobs[0].round, clients, jobs[0].exchange)
        homes = [home_rank(client, self.world.size) for client in clients] if pack_state(jobs[0].states.initial) else []
        return dict(zip(items, assign_ranks(lengths, self.world.size, homes), strict=True))

    def _parts(
        self, jobs: Sequence[CohortJob], ranks: Mapping[Item, int], guests: Mapping[Item, Tensor]
    ) -> dict[int, RankShare]:
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
        self, jobs: Sequence[CohortJob], parts: Mapping[int, RankShare], trained: Mapping[int, TrainedCohort]
    ) -> list[TrainedCohort]:
        """The cohorts' means, from one sum over ranks of one vector."""
        shares = tuple(
            _share(job, parts[number].job, trained[number].cohort) if number in parts else self._nothing(job)
            for number, job in enumerate(jobs)
        )
        sums = self.world.total(states_to_rows(tree_map(lambda t: t[None], shares)))
        means = tree_map(lambda t: t[0], rows_to_states(shares, sums))
        ends = [trained[n].ends if n in trained else job.message.params[None][:0] for n, job in enumerate(jobs)]
        return [
            TrainedCohort(Cohort(mean, uniform, len(job.clients), job.population), end)
            for job, (mean, uniform), end in zip(jobs, means, ends, strict=True)
        ]

    def _nothing(self, job: CohortJob) -> tuple[Any, Any]:
        """What a rank without clients adds: replies of zeros."""
        steps = torch.ones_like(job.sgd.lr)
        reply, _ = finish_local_training(
            self.method, job.sgd, start_local_training(job.message, job.states.initial), job.message, steps
        )
        zeros = tree_map(torch.zeros_like, reply)
        return zeros, zeros


def _part(job: CohortJob, positions: list[int], guests: Mapping[int, Tensor]) -> RankShare:
    """The job of the clients at these positions."""
    desk = BorrowedStates(job.states, len(positions), guests)
    weights = job.weights[send_to_device(positions, job.weights.device)]
    clients = [job.clients[position] for position in positions]
    return RankShare(job._replace(clients=clients, weights=weights, states=desk), positions, desk)


def _returning(parts: Mapping[int, RankShare]) -> dict[Item, Tensor]:
    """What guests have learned."""
    return {
        (number, part.positions[place]): row
        for number, part in parts.items()
        for place, row in part.desk.returning().items()
    }


def _share(job: CohortJob, part: CohortJob, cohort: Cohort) -> tuple[Any, Any]:
    """A rank's contribution to the weighted and the plain means."""
    weight, number = part.weights.sum() / job.weights.sum(), len(part.clients) / len(job.clients)
    return tree_map(lambda t: t * weight.to(t.dtype), cohort.mean), tree_map(lambda t: t * number, cohort.uniform)
