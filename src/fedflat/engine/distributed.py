"""The engine for several GPUs or hosts: every rank trains a share of the cohort, then all ranks average.

What happens in one exchange:

    1. Every rank computes the same assignment of clients to ranks (`assign_ranks`); no message is needed.
    2. A client's state is kept by one rank, its owner (`owner_rank`). If another rank trains the client, the owner
       lends it the state (`fetch_states`).
    3. Every rank trains its share of the clients with the batched engine.
    4. Borrowed states go back to their owners (`return_states`).
    5. Every rank scales the means of its replies by its share of the cohort, and all ranks sum them. With the share
       s_r of rank r (of the weights, or of the number of clients) and the mean m_r of its replies, the cohort's mean is
       Σ_r s_r m_r. The means of all jobs are one vector, so an exchange needs one all-reduce.

Where the aggregation needs all replies (a median, a bound that depends on the cohort), step 5 sums the replies
themselves instead: every rank fills its rows of a matrix of zeros, and all ranks average the whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Method
from fedflat.core.state import pack_state, rows_to_states, send_to_device, states_to_rows, tree_map
from fedflat.core.task import Task
from fedflat.data.batches import BatchSource
from fedflat.engine.batched import Batched
from fedflat.engine.lane_packing import assign_ranks
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.rounds import (
    ClientStates,
    CohortJob,
    TrainedCohort,
    attacked_replies,
    average_replies,
    zero_reply,
)

Item = tuple[int, int]  # one client of one job: the job's number, and the client's position in its cohort


def owner_rank(client: int, ranks: int) -> int:
    """Return the rank that keeps a client's state, with `ranks` ranks in all."""
    return client % ranks


class StateTransfer(NamedTuple):
    """A client's state is sent from rank `source` to rank `target`."""

    source: int
    target: int


class BorrowedStates:
    """The client states of a rank's share of one job: its own clients' in its store, and those lent by other ranks.

    Args:
        store: the states that this rank owns.
        size: the number of clients in the share.
        borrowed: states lent by other ranks, as vectors, by the client's position in the share.
    """

    def __init__(self, store: ClientStates, size: int, borrowed: Mapping[int, Tensor]) -> None:
        self.store, self.initial = store, store.initial
        self.borrowed_positions = list(borrowed)
        self.own_positions = [position for position in range(size) if position not in borrowed]
        self.borrowed_rows = torch.stack(list(borrowed.values())) if borrowed else None

    def gather(self, clients: Sequence[int]) -> Any:
        """Return the stacked states of the share's `clients`, in their order."""
        states = self.store.gather(clients)
        if self.borrowed_rows is None:
            return states
        borrowed, positions = rows_to_states(self.initial, self.borrowed_rows), self.borrowed_positions
        return tree_map(
            lambda all, new: all.index_copy(0, send_to_device(positions, all.device), new), states, borrowed
        )

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store the new states of own clients; keep those of the others for `returned`."""
        if self.own_positions:
            own = tree_map(lambda all: all[send_to_device(self.own_positions, all.device)], states)
            self.store.scatter([clients[position] for position in self.own_positions], own)
        if self.borrowed_positions:
            borrowed = tree_map(lambda all: all[send_to_device(self.borrowed_positions, all.device)], states)
            self.borrowed_rows = states_to_rows(borrowed)

    def returned(self) -> dict[int, Tensor]:
        """Return the borrowed states as vectors, by the client's position in the share."""
        if self.borrowed_rows is None:
            return {}
        return dict(zip(self.borrowed_positions, self.borrowed_rows.unbind(), strict=True))


def plan_transfers(jobs: Sequence[CohortJob], ranks: Mapping[Item, int], size: int) -> dict[Item, StateTransfer]:
    """Return the transfers of clients that are not trained by their owner; none if clients keep no state.

    Args:
        jobs: the jobs of this exchange.
        ranks: the rank that trains each client.
        size: the number of ranks.
    """
    if not pack_state(jobs[0].states.initial):
        return {}
    owners = {item: owner_rank(jobs[item[0]].clients[item[1]], size) for item in ranks}
    return {item: StateTransfer(owners[item], rank) for item, rank in ranks.items() if rank != owners[item]}


def fetch_states(
    processes: ProcessGroup, jobs: Sequence[CohortJob], transfers: Mapping[Item, StateTransfer]
) -> dict[Item, Tensor]:
    """Lend the states of own clients that other ranks train; return, as vectors, those that this rank borrows."""
    rows: dict[Item, Tensor] = {}
    for number, job in enumerate(jobs):
        items = [item for item, way in transfers.items() if item[0] == number and way.source == processes.rank]
        if items:
            states = job.states.gather([job.clients[position] for _, position in items])
            rows |= zip(items, states_to_rows(states).unbind(), strict=True)
    return transfer_rows(processes, jobs, transfers, rows)


def return_states(
    processes: ProcessGroup,
    jobs: Sequence[CohortJob],
    transfers: Mapping[Item, StateTransfer],
    rows: Mapping[Item, Tensor],
) -> None:
    """Send borrowed states (`rows`, as vectors) back to their owners and store those that come back to this rank."""
    back = {item: StateTransfer(way.target, way.source) for item, way in transfers.items()}
    for (number, position), row in transfer_rows(processes, jobs, back, rows).items():
        job = jobs[number]
        job.states.scatter([job.clients[position]], rows_to_states(job.states.initial, row[None]))


def transfer_rows(
    processes: ProcessGroup,
    jobs: Sequence[CohortJob],
    transfers: Mapping[Item, StateTransfer],
    rows: Mapping[Item, Tensor],
) -> dict[Item, Tensor]:
    """Send states as vectors, one message for each pair of ranks.

    Args:
        processes: the ranks.
        jobs: the jobs of this exchange, which give the size of a state.
        transfers: who sends which client's state to whom, the same on every rank.
        rows: the states that this rank sends.

    Returns the states that this rank receives.
    """
    leaving: dict[int, list[Tensor]] = {}
    arriving: dict[int, list[Item]] = {}
    for item, way in transfers.items():
        if way.source == processes.rank:
            leaving.setdefault(way.target, []).append(rows[item])
        elif way.target == processes.rank:
            arriving.setdefault(way.source, []).append(item)
    like = pack_state(jobs[0].states.initial)
    width = sum(tensor.numel() for tensor in like.values())
    incoming = {rank: next(iter(like.values())).new_empty(len(items), width) for rank, items in arriving.items()}
    received = processes.send_and_receive({rank: torch.stack(states) for rank, states in leaving.items()}, incoming)
    return {item: row for rank, items in arriving.items() for item, row in zip(items, received[rank], strict=True)}


class RankShare(NamedTuple):
    """The clients of one job that this rank trains.

    Args:
        job: the job with these clients only.
        positions: their positions in the whole cohort.
        states: their states, which are also `job.states`.
    """

    job: CohortJob
    positions: list[int]
    states: BorrowedStates


class Distributed:
    """Trains this rank's share of every cohort with the batched engine, and averages over all ranks.

    The means that `train` returns are those of the whole cohort, the same on every rank. `TrainedCohort.ends` are those
    of this rank's share only, in the cohort's order: only measurements need single models, and all of them would have
    to be sent.

    Args:
        method, task, source: as for the other engines.
        processes: the ranks that train together.
    """

    def __init__(self, method: Method, task: Task, source: BatchSource, processes: ProcessGroup) -> None:
        self.method, self.source, self.processes = method, source, processes
        self.local_engine = Batched(method, task, source)

    @property
    def lanes(self) -> int | None:
        """The number of lanes of this rank, None before it is chosen."""
        return self.local_engine.lanes

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose the number of lanes for this rank's share of these rounds, as if no client had an owner."""
        shares = [
            [
                steps
                for steps, rank in zip(lengths, assign_ranks(lengths, self.processes.size), strict=True)
                if rank == self.processes.rank
            ]
            for lengths in rounds
        ]
        self.local_engine.prepare([lengths for lengths in shares if lengths] or [[1]])

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange: see the steps at the top of this file."""
        with torch.no_grad():
            ranks = self._assign_ranks(jobs)
            transfers = plan_transfers(jobs, ranks, self.processes.size)
            shares = self._own_shares(jobs, ranks, fetch_states(self.processes, jobs, transfers))
            trained = self.local_engine.train_replies([share.job for share in shares.values()]) if shares else []
            return_states(self.processes, jobs, transfers, _borrowed_rows(shares))
            replies = {number: replies for number, (replies, _) in zip(shares, trained, strict=True)}
            average = self._average_all if jobs[0].aggregation.needs_all_replies else self._average
            cohorts = average(jobs, shares, replies)
            ends = {number: ends for number, (_, ends) in zip(shares, trained, strict=True)}
            empty = [job.message.params[None][:0] for job in jobs]
            return [TrainedCohort(cohort, ends.get(n, empty[n])) for n, cohort in enumerate(cohorts)]

    def _assign_ranks(self, jobs: Sequence[CohortJob]) -> dict[Item, int]:
        """Return the rank that trains each client; every rank computes the same."""
        items = [(number, position) for number, job in enumerate(jobs) for position in range(len(job.clients))]
        clients = [jobs[number].clients[position] for number, position in items]
        seeds = [jobs[number].seed for number, _ in items]
        lengths = self.source.lengths(seeds, jobs[0].round, clients, jobs[0].exchange)
        size, stateful = self.processes.size, bool(pack_state(jobs[0].states.initial))
        owners = [owner_rank(client, size) for client in clients] if stateful else []
        return dict(zip(items, assign_ranks(lengths, size, owners), strict=True))

    def _own_shares(
        self, jobs: Sequence[CohortJob], ranks: Mapping[Item, int], borrowed: Mapping[Item, Tensor]
    ) -> dict[int, RankShare]:
        """Return this rank's share of each job, by the job's number, without jobs of which it trains no client."""
        positions: dict[int, list[int]] = {}
        for (number, position), rank in ranks.items():
            if rank == self.processes.rank:
                positions.setdefault(number, []).append(position)
        return {
            number: _share_of_job(
                jobs[number], own, {i: borrowed[number, p] for i, p in enumerate(own) if (number, p) in borrowed}
            )
            for number, own in positions.items()
        }

    def _average(
        self, jobs: Sequence[CohortJob], shares: Mapping[int, RankShare], replies: Mapping[int, Any]
    ) -> list[Cohort]:
        """Return the cohorts' means, from one sum over ranks of one vector."""
        scaled = tuple(
            _scaled_means(job, shares[number].job, average_replies(replies[number], shares[number].job))
            if number in shares
            else (zero_reply(self.method, job),) * 2
            for number, job in enumerate(jobs)
        )
        sums = self.processes.sum_over_ranks(states_to_rows(tree_map(lambda t: t[None], scaled)))
        means = tree_map(lambda t: t[0], rows_to_states(scaled, sums))
        return [
            Cohort(mean, uniform, len(job.clients), job.population, job.expected_size)
            for job, (mean, uniform) in zip(jobs, means, strict=True)
        ]

    def _average_all(
        self, jobs: Sequence[CohortJob], shares: Mapping[int, RankShare], replies: Mapping[int, Any]
    ) -> list[Cohort]:
        """Return the cohorts' averages by a rule that needs all replies, which every rank then has."""
        cohorts = []
        for number, job in enumerate(jobs):
            like = zero_reply(self.method, job)
            rows = states_to_rows(tree_map(lambda t: t.expand(len(job.clients), *t.shape), like)).contiguous()
            if number in shares:
                own = attacked_replies(replies[number], shares[number].job)
                rows[send_to_device(shares[number].positions, rows.device)] = states_to_rows(own)
            every = rows_to_states(like, self.processes.sum_over_ranks(rows))
            cohorts.append(average_replies(every, job._replace(attack=None)))
        return cohorts


def _share_of_job(job: CohortJob, positions: list[int], borrowed: Mapping[int, Tensor]) -> RankShare:
    """Return the part of a job with the clients at these positions of its cohort."""
    states = BorrowedStates(job.states, len(positions), borrowed)
    weights = job.weights[send_to_device(positions, job.weights.device)]
    clients = [job.clients[position] for position in positions]
    optimiser = job.optimiser.of_clients(positions, len(job.clients))
    own = job._replace(clients=clients, weights=weights, states=states, optimiser=optimiser)
    return RankShare(own, positions, states)


def _borrowed_rows(shares: Mapping[int, RankShare]) -> dict[Item, Tensor]:
    """Return the borrowed states after training, as vectors."""
    return {
        (number, share.positions[position]): row
        for number, share in shares.items()
        for position, row in share.states.returned().items()
    }


def _scaled_means(job: CohortJob, own: CohortJob, cohort: Cohort) -> tuple[Any, Any]:
    """Return a rank's summands of the weighted and the plain mean: its means times its share of the cohort."""
    weight, number = own.weights.sum() / job.weights.sum(), len(own.clients) / len(job.clients)
    return tree_map(lambda t: t * weight.to(t.dtype), cohort.mean), tree_map(lambda t: t * number, cohort.uniform)
