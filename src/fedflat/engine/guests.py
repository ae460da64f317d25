"""Clients at home and away: a client's state lives on rank (client mod ranks) and visits the rank that trains it.

The rule needs no table and is the same after a restart, so a resumed run deals the same work to the same ranks. A
client is sent away only where staying at home would lengthen the round. All ranks know all journeys, so nothing is
negotiated, and two ranks exchange one message each way however many states travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.state import pack_state, rows_to_states, send_to_device, states_to_rows, tree_map
from fedflat.engine.contract import Job, States
from fedflat.engine.world import World

Item = tuple[int, int]  # number of the job, position in its cohort


def home(client: int, ranks: int) -> int:
    """The rank that keeps a client's state."""
    return client % ranks


class Route(NamedTuple):
    """A state goes from rank `source` to rank `target`."""

    source: int
    target: int


class Desk:
    """The states of a rank's part of a cohort: its own clients' in its store, its guests' (by position) on loan."""

    def __init__(self, store: States, size: int, guests: Mapping[int, Tensor]) -> None:
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


def journeys(jobs: Sequence[Job], ranks: Mapping[Item, int], size: int) -> dict[Item, Route]:
    """Who is trained away from home; nobody where clients keep nothing."""
    if not pack_state(jobs[0].states.initial):
        return {}
    homes = {item: home(jobs[item[0]].clients[item[1]], size) for item in ranks}
    return {item: Route(homes[item], rank) for item, rank in ranks.items() if rank != homes[item]}


def fetch(world: World, jobs: Sequence[Job], routes: Mapping[Item, Route]) -> dict[Item, Tensor]:
    """The states of this rank's guests; those of its own clients who are guests elsewhere leave."""
    rows: dict[Item, Tensor] = {}
    for number, job in enumerate(jobs):
        items = [item for item, route in routes.items() if item[0] == number and route.source == world.rank]
        if items:
            states = job.states.gather([job.clients[position] for _, position in items])
            rows |= zip(items, states_to_rows(states).unbind(), strict=True)
    return ship(world, jobs, routes, rows)


def give_back(world: World, jobs: Sequence[Job], routes: Mapping[Item, Route], rows: Mapping[Item, Tensor]) -> None:
    """The same ways in the other direction: guests' states leave, those of this rank's clients are stored."""
    back = {item: Route(route.target, route.source) for item, route in routes.items()}
    for (number, position), row in ship(world, jobs, back, rows).items():
        job = jobs[number]
        job.states.scatter([job.clients[position]], rows_to_states(job.states.initial, row[None]))


def ship(
    world: World, jobs: Sequence[Job], routes: Mapping[Item, Route], rows: Mapping[Item, Tensor]
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
