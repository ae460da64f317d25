"""The fast engine: clients are lanes of one vmapped step.

Clients of unequal length are packed into lanes, several seeds ride in the same lanes, and nothing in a round waits for
the device. A lane is idle after its last client only: it goes on stepping, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedflat.data.feed import Plan, Source
from fedflat.engine.contract import Job, Trained, summarise
from fedflat.engine.graph import WARM_UP, capture, trace
from fedflat.engine.packing import Schedule, choose_lanes, schedule
from fedflat.engine.state import tree_map
from fedflat.kernels import use_lane_ops
from fedflat.local import SGD, Carry, advance, finish, start
from fedflat.method import Method
from fedflat.task import Task
from fedflat.transfer import send


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
        self.method, self.source, self.lanes = method, source, lanes
        self.task = Task(use_lane_ops(task.model), task.compute)
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
        steps = send(lengths, ends.device, ends.dtype)
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
    """The lanes' tensors, which stay from round to round, and the step that works on them."""

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
        self._trace(Plan(*(t[zeros, 0] for t in plan)))
        self._capacity = 0

    def _trace(self, plan: Plan) -> None:
        """The step as plain operations; on a GPU compiled to work in place."""
        inputs = (self.carry, self.message, self.lr, plan)
        if self.lr.is_cuda:
            self.clock = torch.zeros(1, dtype=torch.int64, device=self.lr.device)
            self._step = torch.compile(trace(self._in_place, *inputs), fullgraph=True, dynamic=False)
        else:
            self._step = trace(self._advance, *inputs)

    def _advance(self, carry: Carry, message: Any, lr: Tensor, plan: Plan) -> Carry:
        """One step of every lane."""
        sgd = SGD(lr, self.momentum, self.weight_decay)
        step = vmap(lambda c, b, m: advance(self.method, self.task, sgd, c, b, m))
        return step(carry, self.source.batch(plan), message)

    def _in_place(self, carry: Carry, message: Any, lr: Tensor, plan: Plan) -> None:
        """One step of every lane, written over the carry."""
        tree_map(torch.Tensor.copy_, carry, self._advance(carry, message, lr, plan))

    def play(self, work: Work, plan: Plan, table: Schedule, sgd: SGD) -> tuple[Tensor, Any]:
        """All steps of a round; returns each item's end of training and state."""
        self._load(plan, table)
        self.lr.copy_(sgd.lr)
        ends = self.carry.w.new_empty(len(work.clients), self.carry.w.shape[1])
        states = tree_map(torch.clone, work.states)
        owner = send(work.owner, ends.device)
        starts, stops = _by_time(table.starts, ends.device), _by_time(table.ends, ends.device)
        for time in range(len(table.item) + 1):
            if time in stops:
                self._put_aside(*stops[time], ends, states)
            if time in starts:
                self._take_up(*starts[time], owner, work)
            if time < len(table.item):
                self._tick(time)
        return ends, states

    def _load(self, plan: Plan, table: Schedule) -> None:
        """Lay the round's plan out by time and lane."""
        device, steps = self.lr.device, len(table.item)
        item, step = (send(t, device) for t in (table.item, table.step))
        self._reserve(steps, plan)
        rows = item.clamp(min=0)
        for buffer, source in zip(self._plan, plan, strict=True):
            buffer[:steps] = source[rows, step]
        if device.type == "cuda":
            self.clock.zero_()

    def _reserve(self, steps: int, plan: Plan) -> None:
        """Room for `steps` steps; on a GPU the step is captured anew when the room moves."""
        if steps <= self._capacity:
            return
        self._capacity = max(steps, 2 * self._capacity, WARM_UP + 1)
        lanes, batch = len(self.carry.w), plan.rows.shape[-1]
        self._plan = Plan(*(t.new_zeros(self._capacity, lanes, batch) for t in plan))
        if self.lr.is_cuda:
            self.clock.zero_()
            self._replay = capture(self._timed_step)

    def _timed_step(self) -> None:
        """One step at the time on the device's own clock."""
        plan = Plan(*(t.index_select(0, self.clock)[0] for t in self._plan))
        self._step(self.carry, self.message, self.lr, plan)
        self.clock.add_(1)

    def _tick(self, time: int) -> None:
        """One step of every lane."""
        if self.lr.is_cuda:
            return self._replay()
        new = self._step(self.carry, self.message, self.lr, Plan(*(t[time] for t in self._plan)))
        self.carry = tree_map(torch.Tensor.contiguous, new)  # a constant comes as one element seen many times

    def _put_aside(self, lanes: Tensor, items: Tensor, ends: Tensor, states: Any) -> None:
        """Store what finished items have learned."""
        ends.index_copy_(0, items, self.carry.w[lanes])
        tree_map(lambda kept, lane: kept.index_copy_(0, items, lane[lanes]), states, self.carry.client)

    def _take_up(self, lanes: Tensor, items: Tensor, owner: Tensor, work: Work) -> None:
        """Give lanes new items: their trial's message, their own state, no momentum."""
        jobs = owner[items]
        tree_map(lambda lane, new: lane.index_copy_(0, lanes, new[jobs]), self.message, work.messages)
        self.carry.w.index_copy_(0, lanes, self.message.params[lanes])
        self.carry.buffer.index_fill_(0, lanes, 0.0)
        tree_map(lambda lane, new: lane.index_copy_(0, lanes, new[items]), self.carry.client, work.states)


def _by_time(rows: np.ndarray, device: torch.device) -> dict[int, tuple[Tensor, Tensor]]:
    """Lanes and items of each time, moved to the device at once."""
    moved = send(np.ascontiguousarray(rows[:, 1:].T), device)
    times, first = np.unique(rows[:, 0], return_index=True)
    bounds = zip(times.tolist(), first.tolist(), [*first[1:].tolist(), len(rows)], strict=True)
    return {time: (moved[0, a:b], moved[1, a:b]) for time, a, b in bounds}
