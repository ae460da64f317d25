"""The fast engine: clients are lanes of one vmapped step, traced once and, on a GPU, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedflat.core.local_training import SGD, LocalState, finish_local_training, local_step, start_local_training
from fedflat.core.method import Method
from fedflat.core.state import send_to_device, state_tensors, tree_map
from fedflat.core.task import Task
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.kernels import use_lane_ops
from fedflat.engine.lane_packing import LaneSchedule, choose_lanes, schedule_lanes
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies


def trace_operations(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    """The operations that `function` does on tensors like `inputs`, without the transforms that produced them."""
    graph = make_fx(lambda *tensors: function(*tensors), tracing_mode="real")(*inputs)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1]:  # a part that never changes
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def capture_cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """A function that works on fixed tensors on a GPU, as a CUDA graph; it runs a few times to warm up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


WARM_UP = 3


class LaneWork(NamedTuple):
    """All clients of all trials in one exchange; item i trains client `clients[i]` of job `owner[i]`."""

    jobs: Sequence[CohortJob]
    owner: list[int]
    clients: list[int]
    states: Any  # stacked over items
    messages: Any  # stacked over jobs


class Lanes:
    """The lanes' tensors, which stay from round to round, and the step that works on them."""

    def __init__(
        self, method: Method, task: Task, source: BatchSource, lanes: int, work: LaneWork, plan: BatchPlan, sgd: SGD
    ) -> None:
        self.method, self.task, self.source = method, task, source
        zeros = [0] * lanes
        self.message = tree_map(lambda t: t[zeros].clone(), work.messages)
        self.carry = start_local_training(self.message, tree_map(lambda t: t[zeros].clone(), work.states))
        self.carry = self.carry._replace(w=self.carry.w.clone())
        self.lr = sgd.lr.clone()
        self.momentum, self.weight_decay = sgd.momentum, sgd.weight_decay
        self._trace(BatchPlan(*(t[zeros, 0] for t in plan)))
        self._capacity = 0

    def _trace(self, plan: BatchPlan) -> None:
        """The step as plain operations; on a GPU compiled to work in place."""
        inputs = (self.carry, self.message, self.lr, plan)
        graph = trace_operations(self._in_place if self.lr.is_cuda else self._advance, *inputs)
        first, count = len(state_tensors(self.carry)), len(state_tensors(self.message))
        self._reads = [bool(node.users) for node in graph.graph.find_nodes(op="placeholder")[first : first + count]]
        self._step: Callable[..., Any] = graph
        if self.lr.is_cuda:
            self.clock = torch.zeros(1, dtype=torch.int64, device=self.lr.device)
            self._step = torch.compile(graph, fullgraph=True, dynamic=False)

    def _advance(self, carry: LocalState, message: Any, lr: Tensor, plan: BatchPlan) -> LocalState:
        """One step of every lane."""
        sgd = SGD(lr, self.momentum, self.weight_decay)
        step = vmap(lambda c, b, m: local_step(self.method, self.task, sgd, c, b, m))
        return _own_memory(step(carry, self.source.batch(plan), message), carry, (message, lr, plan))

    def _in_place(self, carry: LocalState, message: Any, lr: Tensor, plan: BatchPlan) -> None:
        """One step of every lane, written over the carry."""
        tree_map(torch.Tensor.copy_, carry, self._advance(carry, message, lr, plan))

    def play(self, work: LaneWork, plan: BatchPlan, table: LaneSchedule, sgd: SGD) -> tuple[Tensor, Any]:
        """All steps of a round; returns each item's end of training and state."""
        self._load(plan, table)
        self.lr.copy_(sgd.lr)
        ends = self.carry.w.new_empty(len(work.clients), self.carry.w.shape[1])
        states = tree_map(torch.clone, work.states)
        owner = send_to_device(work.owner, ends.device)
        lanes = len(self.carry.w)
        starts, stops = (_by_time(rows, lanes, ends.device) for rows in (table.starts, table.ends))
        for time in range(len(table.item) + 1):
            if time in stops:
                self._put_aside(stops[time], ends, states)
            if time in starts:
                self._take_up(starts[time], owner, work)
            if time < len(table.item):
                self._tick(time)
        return ends, states

    def _load(self, plan: BatchPlan, table: LaneSchedule) -> None:
        """Lay the round's plan out by time and lane."""
        device, steps = self.lr.device, len(table.item)
        item, step = (send_to_device(t, device) for t in (table.item, table.step))
        self._reserve(steps, plan)
        rows = item.clamp(min=0)
        for buffer, source in zip(self._plan, plan, strict=True):
            buffer[:steps] = source[rows, step]
        if device.type == "cuda":
            self.clock.zero_()

    def _reserve(self, steps: int, plan: BatchPlan) -> None:
        """Room for `steps` steps; on a GPU the step is captured anew when the room moves."""
        if steps <= self._capacity:
            return
        self._capacity = max(steps, 2 * self._capacity, WARM_UP + 1)
        lanes, batch = len(self.carry.w), plan.rows.shape[-1]
        self._plan = BatchPlan(*(t.new_zeros(self._capacity, lanes, batch) for t in plan))
        if self.lr.is_cuda:
            self.clock.zero_()
            self._replay = capture_cuda_graph(self._timed_step)

    def _timed_step(self) -> None:
        """One step at the time on the device's own clock."""
        plan = BatchPlan(*(t.index_select(0, self.clock)[0] for t in self._plan))
        self._step(self.carry, self.message, self.lr, plan)
        self.clock.add_(1)

    def _tick(self, time: int) -> None:
        """One step of every lane."""
        if self.lr.is_cuda:
            return self._replay()
        new = self._step(self.carry, self.message, self.lr, BatchPlan(*(t[time] for t in self._plan)))
        self.carry = tree_map(torch.Tensor.contiguous, new)  # a constant comes as one element seen many times

    def _put_aside(self, move: LaneMoves, ends: Tensor, states: Any) -> None:
        """Store what finished items have learned."""
        ends.index_copy_(0, move.items, move.of(self.carry.w))
        tree_map(lambda kept, lane: kept.index_copy_(0, move.items, move.of(lane)), states, self.carry.client)

    def _take_up(self, move: LaneMoves, owner: Tensor, work: LaneWork) -> None:
        """Give lanes new items: their trial's message as far as steps read it, their own state, no momentum."""

        def rows(new: Tensor) -> Tensor:
            return new.expand(len(move.items), *new.shape[1:]) if len(new) == 1 else new[owner[move.items]]

        for lane, new, read in zip(state_tensors(self.message), state_tensors(work.messages), self._reads, strict=True):
            if read:
                lane.index_copy_(0, move.lanes, rows(new))
        self.carry.w.index_copy_(0, move.lanes, rows(work.messages.params))
        if self.momentum:
            self.carry.buffer.index_fill_(0, move.lanes, 0.0)
        tree_map(lambda lane, new: lane.index_copy_(0, move.lanes, new[move.items]), self.carry.client, work.states)


def _own_memory(new: LocalState, old: LocalState, others: Any) -> LocalState:
    """`new` with memory of its own: a method may keep what it was given, the last w, say, or keep one tensor twice."""
    taken = {_memory_start(t) for t in [*state_tensors(old), *state_tensors(others)]}

    def own(t: Tensor, before: Tensor) -> Tensor:
        place = _memory_start(t)
        shared = place in taken and place != _memory_start(before)
        taken.add(place)
        return t.clone() if shared else t

    return tree_map(own, new, old)


def _memory_start(t: Tensor) -> int:
    """Where its memory begins."""
    return t.untyped_storage().data_ptr()


class LaneMoves(NamedTuple):
    """Lanes and the items they take up or put aside; `all`: every lane, in order."""

    lanes: Tensor
    items: Tensor
    all: bool

    def of(self, t: Tensor) -> Tensor:
        """What these lanes have of t."""
        return t if self.all else t[self.lanes]


def _by_time(rows: np.ndarray, lanes: int, device: torch.device) -> dict[int, LaneMoves]:
    """The moves at each time, sent to the device at once."""
    moved = send_to_device(np.ascontiguousarray(rows[:, 1:].T), device)
    times, first = np.unique(rows[:, 0], return_index=True)
    bounds = zip(times.tolist(), first.tolist(), [*first[1:].tolist(), len(rows)], strict=True)
    every = range(lanes)
    return {t: LaneMoves(moved[0, a:b], moved[1, a:b], rows[a:b, 1].tolist() == [*every]) for t, a, b in bounds}


class Batched:
    """Trains all clients of a round, and all seeds, as lanes of one step."""

    def __init__(self, method: Method, task: Task, source: BatchSource, lanes: int | None = None) -> None:
        self.method, self.source, self.lanes = method, source, lanes
        self.task = Task(use_lane_ops(task.model), task.compute)
        self._bench: Lanes | None = None

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose the number of lanes that suits these rounds."""
        self.lanes = choose_lanes(rounds, max(len(lengths) for lengths in rounds))

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        with torch.no_grad():
            work = _gather(jobs)
            seeds = [jobs[owner].seed for owner in work.owner]
            round, exchange = jobs[0].round, jobs[0].exchange
            lengths = self.source.lengths(seeds, round, work.clients, exchange)
            plan = self.source.plan(seeds, round, work.clients, exchange)
            table = schedule_lanes(lengths, self._width(lengths))
            ends, states = self._bench_for(work, plan, jobs[0].sgd).play(work, plan, table, jobs[0].sgd)
            return self._conclude(work, ends, states, lengths)

    def _width(self, lengths: Sequence[int]) -> int:
        """The number of lanes, chosen by the first round unless it was prepared."""
        if self.lanes is None:
            self.prepare([lengths])
        assert self.lanes is not None
        return self.lanes

    def _bench_for(self, work: LaneWork, plan: BatchPlan, sgd: SGD) -> Lanes:
        """The lanes, made at the first round."""
        if self._bench is None:
            assert self.lanes is not None
            self._bench = Lanes(self.method, self.task, self.source, self.lanes, work, plan, sgd)
        return self._bench

    def _conclude(self, work: LaneWork, ends: Tensor, states: Any, lengths: Sequence[int]) -> list[TrainedCohort]:
        """Replies, kept states and means, job by job."""
        steps = send_to_device(lengths, ends.device, ends.dtype)
        trained, first = [], 0
        for job in work.jobs:
            part = slice(first, first + len(job.clients))
            first = part.stop
            carry = LocalState(ends[part], ends[part], tree_map(lambda t: t[part], states))
            replies, kept = vmap(lambda c, k: finish_local_training(self.method, job.sgd, c, job.message, k))(
                carry, steps[part]
            )
            job.states.scatter(job.clients, kept)
            trained.append(TrainedCohort(average_replies(replies, job), ends[part]))
        return trained


def _gather(jobs: Sequence[CohortJob]) -> LaneWork:
    """Put the clients of all jobs side by side."""
    owner = [number for number, job in enumerate(jobs) for _ in job.clients]
    states = [job.states.gather(job.clients) for job in jobs]
    return LaneWork(
        jobs,
        owner,
        [client for job in jobs for client in job.clients],
        tree_map(lambda *parts: torch.cat(parts), *states),
        tree_map(lambda *parts: torch.stack(parts), *(job.message for job in jobs)),
    )
