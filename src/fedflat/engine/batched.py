"""The fast engine: clients are lanes of one vmapped step.

Clients of unequal length are packed into lanes, several seeds ride in the same lanes, a step without work is masked
after the optimiser, and nothing in a round waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedflat.data.feed import Plan, Source
from fedflat.engine.contract import Job, Trained, summarise
from fedflat.engine.graph import Replay, trace
from fedflat.engine.packing import Schedule, Switch, choose_lanes, schedule
from fedflat.engine.state import tree_map
from fedflat.local import SGD, Carry, advance, finish, start
from fedflat.method import Method
from fedflat.task import Task


class Work(NamedTuple):
    """All clients of all trials in one exchange; item i trains client `clients[i]` of job `owner[i]`."""

    jobs: Sequence[Job]
    owner: list[int]
    clients: list[int]
    states: Any  # stacked over items
    messages: Any  # stacked over jobs


class Batched:
    """Trains all clients of a round, and all seeds, as lanes of one step."""

    def __init__(self, method: Method, task: Task, source: Source, lanes: int | None = None) -> None:
        self.method, self.task, self.source, self.lanes = method, task, source, lanes
        self._bench: Bench | None = None

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose the number of lanes that suits these rounds."""
        self.lanes = choose_lanes(rounds, max(len(lengths) for lengths in rounds))

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Run one exchange."""
        with torch.no_grad():
            work = _gather(jobs)
            seeds = [jobs[owner].seed for owner in work.owner]
            round, exchange = jobs[0].round, jobs[0].exchange
            lengths = self.source.lengths(seeds, round, work.clients, exchange)
            plan = self.source.plan(seeds, round, work.clients, exchange)
            table = schedule(lengths, self._width(lengths))
            ends, states = self._bench_for(work, plan, jobs[0].sgd).play(work, plan, table, jobs[0].sgd)
            return self._conclude(work, ends, states, lengths)

    def _width(self, lengths: Sequence[int]) -> int:
        """The number of lanes, chosen by the first round unless it was prepared."""
        if self.lanes is None:
            self.prepare([lengths])
        assert self.lanes is not None
        return self.lanes

    def _bench_for(self, work: Work, plan: Plan, sgd: SGD) -> Bench:
        """The lanes, made at the first round."""
        if self._bench is None:
            assert self.lanes is not None
            self._bench = Bench(self.method, self.task, self.source, self.lanes, work, plan, sgd)
        return self._bench

    def _conclude(self, work: Work, ends: Tensor, states: Any, lengths: Sequence[int]) -> list[Trained]:
        """Replies, kept states and means, job by job."""
        steps = torch.tensor(lengths, dtype=ends.dtype, device=ends.device)
        trained, first = [], 0
        for job in work.jobs:
            part = slice(first, first + len(job.clients))
            first = part.stop
            carry = Carry(ends[part], ends[part], tree_map(lambda t: t[part], states))
            replies, kept = vmap(lambda c, k: finish(self.method, job.sgd, c, job.message, k))(carry, steps[part])
            job.states.scatter(job.clients, kept)
            trained.append(Trained(summarise(replies, job), ends[part]))
        return trained


def _gather(jobs: Sequence[Job]) -> Work:
    """Put the clients of all jobs side by side."""
    owner = [number for number, job in enumerate(jobs) for _ in job.clients]
    states = [job.states.gather(job.clients) for job in jobs]
    return Work(
        jobs,
        owner,
        [client for job in jobs for client in job.clients],
        tree_map(lambda *parts: torch.cat(parts), *states),
        tree_map(lambda *parts: torch.stack(parts), *(job.message for job in jobs)),
    )


class Bench:
    """The lanes' tensors, which stay where they are from round to round, and the step that works on them."""

    def __init__(
        self, method: Method, task: Task, source: Source, lanes: int, work: Work, plan: Plan, sgd: SGD
    ) -> None:
        self.method, self.task, self.source = method, task, source
        zeros = [0] * lanes
        self.message = tree_map(lambda t: t[zeros].clone(), work.messages)
        self.carry = start(self.message, tree_map(lambda t: t[zeros].clone(), work.states))
        self.carry = self.carry._replace(w=self.carry.w.clone())
        self.lr = sgd.lr.clone()
        self.momentum, self.weight_decay = sgd.momentum, sgd.weight_decay
        self.time = torch.zeros(1, dtype=torch.int64, device=self.lr.device)
        self._step = trace(self._lanes_step, *self._inputs(Plan(*(t[zeros, 0] for t in plan)), self._idle(lanes)))
        self._capacity = 0

    def _idle(self, lanes: int) -> Tensor:
        return torch.zeros(lanes, dtype=torch.bool, device=self.lr.device)

    def _inputs(self, plan: Plan, active: Tensor) -> tuple[Any, ...]:
        return self.carry, self.message, self.lr, plan, active

    def _lanes_step(self, carry: Carry, message: Any, lr: Tensor, plan: Plan, active: Tensor) -> Carry:
        """One step of every lane; lanes without work keep what they have."""
        sgd = SGD(lr, self.momentum, self.weight_decay)
        new = vmap(lambda c, b, m: advance(self.method, self.task, sgd, c, b, m))(
            carry, self.source.batch(plan), message
        )
        return tree_map(lambda a, b: torch.where(active.view(-1, *[1] * (a.dim() - 1)), a, b), new, carry)

    def play(self, work: Work, plan: Plan, table: Schedule, sgd: SGD) -> tuple[Tensor, Any]:
        """All steps of a round; returns each item's end of training and state."""
        self._load(plan, table)
        self.lr.copy_(sgd.lr)
        ends = self.carry.w.new_empty(len(work.clients), self.carry.w.shape[1])
        states = tree_map(torch.clone, work.states)
        pending = list(table.switches)
        for time in range(len(table.item) + 1):
            now = []
            while pending and pending[0].time == time:
                now.append(pending.pop(0))
            self._switch(now, work, ends, states)
            if time < len(table.item):
                self._replay()
        return ends, states

    def _load(self, plan: Plan, table: Schedule) -> None:
        """Lay the round's plan out by time and lane."""
        device = self.lr.device
        item, step = (torch.from_numpy(t).to(device) for t in (table.item, table.step))
        steps = len(table.item)
        self._reserve(steps, plan)
        rows = item.clamp(min=0)
        for buffer, source in zip(self._plan, plan, strict=True):
            buffer[:steps] = source[rows, step]
        self._active[:steps] = item >= 0
        self.time.zero_()

    def _reserve(self, steps: int, plan: Plan) -> None:
        """Room for `steps` steps; the step is captured anew when the room moves."""
        if steps <= self._capacity:
            return
        self._capacity = max(steps, 2 * self._capacity)
        lanes, batch = len(self.carry.w), plan.rows.shape[-1]
        self._plan = Plan(*(t.new_zeros(self._capacity, lanes, batch) for t in plan))
        self._active = self._idle(lanes).repeat(self._capacity, 1)
        self._replay = Replay(self._tick, self.lr.is_cuda)

    def _tick(self) -> None:
        """One step in place, at the time on the device's own clock."""
        plan = Plan(*(t.index_select(0, self.time)[0] for t in self._plan))
        new = self._step(*self._inputs(plan, self._active.index_select(0, self.time)[0]))
        tree_map(lambda old, fresh: old.copy_(fresh), self.carry, new)
        self.time.add_(1)

    def _switch(self, switches: Sequence[Switch], work: Work, ends: Tensor, states: Any) -> None:
        """Put finished items aside and start the next ones."""
        if done := [(s.lane, s.done) for s in switches if s.done >= 0]:
            lanes, items = (torch.tensor(t, device=ends.device) for t in zip(*done, strict=True))
            ends[items] = self.carry.w[lanes]
            tree_map(lambda kept, lane: kept.index_copy_(0, items, lane[lanes]), states, self.carry.client)
        if fresh := [(s.lane, s.next, work.owner[s.next]) for s in switches if s.next >= 0]:
            lanes, items, jobs = (torch.tensor(t, device=ends.device) for t in zip(*fresh, strict=True))
            tree_map(lambda lane, new: lane.index_copy_(0, lanes, new[jobs]), self.message, work.messages)
            self.carry.w[lanes] = work.messages.params[jobs]
            self.carry.buffer[lanes] = 0
            tree_map(lambda lane, new: lane.index_copy_(0, lanes, new[items]), self.carry.client, work.states)
