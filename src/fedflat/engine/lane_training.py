"""The lanes of the batched engine: places in a batch of models that train one client after another.

When a client has taken its last local step, the lane's result is stored and the next client is loaded into it. All
lanes step together, in one call of the local step under torch.func.vmap, so clients of different lengths, and of
several seeds, share the same lanes.

The vmapped step is traced once into a plain sequence of tensor operations. On a GPU it is then compiled and captured as
a CUDA graph. For that all tensors of the lanes stay at the same addresses from round to round.

`Lanes` has the tensors and the step, `LaneWork` the clients of one exchange, `StepPlan` the batches of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.multiprocessing.reductions import StorageWeakRef

from fedflat.core.local_training import LocalState, local_step, start_local_training
from fedflat.core.method import Method, with_hyper_parameters
from fedflat.core.state import send_to_device, state_tensors, tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.lane_packing import LaneSchedule
from fedflat.engine.rounds import CohortJob
from fedflat.engine.tracing import (
    capture_cuda_graph,
    compile_operations,
    import_compiler_ahead,
    start_compile_workers,
    trace_operations,
)

PLANNED_STEPS = 256  # steps whose batches are in the buffer from which a GPU reads; longer rounds fill it again


class StepPlan(NamedTuple):
    """The batches of one step of all lanes, and the number of steps that each lane's client took before [lanes].

    Those of many steps have the time as first axis.
    """

    samples: BatchPlan
    step: Tensor


class LaneWork(NamedTuple):
    """The clients of all jobs of one exchange, in one list. Item i is client `clients[i]` of job `job_of[i]`.

    Args:
        jobs: the jobs, one per trial.
        job_of: for each item, the number of its job.
        clients: for each item, the number of its client.
        states: what the clients keep, stacked over items.
        messages: the servers' messages, stacked over jobs.
        numbers: for each item, the numbers of its optimiser, its number of steps and the hyper-parameters that differ
            between trials [items, 5 + fields].
    """

    jobs: Sequence[CohortJob]
    job_of: list[int]
    clients: list[int]
    states: Any
    messages: Any
    numbers: Tensor


class Lanes:
    """The tensors of all lanes, which stay from round to round, and the step that works on them.

    `carry` is the local state of each lane (model, optimiser's and client's state), `message` the server's message for
    the client that the lane trains, `numbers` what LaneWork.numbers has for this client; all their tensors have the
    lanes as first axis.

    Args:
        method, task, source, fields: what is trained, where batches come from, and the hyper-parameters in `numbers`.
        lanes: the number of lanes.
        work, plan: the work and the batches of the first exchange, as examples of shapes and types.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        source: BatchSource,
        fields: Sequence[str],
        lanes: int,
        work: LaneWork,
        plan: BatchPlan,
    ) -> None:
        self.method, self.task, self.source, self.fields = method, task, source, fields
        self.optimiser = work.jobs[0].optimiser
        zeros = [0] * lanes
        self.message, states, self.numbers = (
            tree_map(lambda t: t[zeros].clone(), part) for part in (work.messages, work.states, work.numbers)
        )
        self.carry = start_local_training(self.optimiser, self.message, states)
        self.carry = self.carry._replace(w=self.carry.w.clone())
        self._trace_step(StepPlan(BatchPlan(*(t[zeros, 0] for t in plan)), torch.zeros_like(self.numbers[:, 0])))

    def _trace_step(self, plan: StepPlan) -> None:
        """Trace the step, on a GPU compile and capture it as well. Note which tensors of the message the step reads."""
        on_gpu = self.numbers.is_cuda
        step: Callable[..., Any] = self._step
        inputs: tuple[Any, ...] = (self.carry, self.message, self.numbers, plan)
        if on_gpu:
            self._plans = tree_map(lambda t: t.new_zeros(PLANNED_STEPS, *t.shape), plan)
            self._time = torch.zeros(1, dtype=torch.int64, device=self.numbers.device)
            step, inputs = self._step_in_place, (*inputs[:3], self._plans, self._time)
            import_compiler_ahead().join()
            start_compile_workers()
        graph = trace_operations(step, *inputs)
        first, count = len(state_tensors(self.carry)), len(state_tensors(self.message))
        placeholders = graph.graph.find_nodes(op="placeholder")[first : first + count]
        self._message_reads = [bool(node.users) for node in placeholders]
        self._traced_step: Callable[..., Any] = graph
        if on_gpu:
            compiled = compile_operations(graph, *inputs)
            self._replay_step = capture_cuda_graph(lambda: compiled(*inputs))

    def _step(self, carry: LocalState, message: Any, numbers: Tensor, plan: StepPlan) -> LocalState:
        """Take one local step in every lane."""

        def step(state: LocalState, batch: Batch, msg: Any, own: Tensor) -> LocalState:
            method = with_hyper_parameters(self.method, dict(zip(self.fields, own[5:].unbind(), strict=True)))
            return local_step(method, self.task, self.optimiser.with_numbers(own[:4]), state, batch, msg)

        batch = self.source.batch(plan.samples)._replace(step=plan.step, steps=numbers[:, 4])
        return _without_shared_memory(vmap(step)(carry, batch, message, numbers), carry, (message, numbers, plan))

    def _step_in_place(self, carry: LocalState, message: Any, numbers: Tensor, plans: StepPlan, time: Tensor) -> None:
        """Take the step at `time` in every lane, write it over `carry`, and advance the time."""
        plan = tree_map(lambda t: t.index_select(0, time)[0], plans)
        tree_map(torch.Tensor.copy_, carry, self._step(carry, message, numbers, plan))
        time.add_(1)

    def train(self, work: LaneWork, plan: BatchPlan, schedule: LaneSchedule) -> tuple[Tensor, Any]:
        """Train all items of an exchange.

        Args:
            work: the items.
            plan: their batches [items, steps, batch].
            schedule: which lane trains which item at which time.

        Returns the models at the end of local training [items, P] and what the clients keep, stacked over items.
        """
        plans = self._plan_steps(plan, schedule)
        ends = self.carry.w.new_empty(len(work.clients), self.carry.w.shape[1])
        states = tree_map(torch.clone, work.states)
        job_of = send_to_device(work.job_of, ends.device)
        lanes = len(self.carry.w)
        starting, finished = (_moves_by_time(rows, lanes, ends.device) for rows in (schedule.starts, schedule.ends))
        for time in range(len(schedule.item) + 1):
            if time in finished:
                self._store_items(finished[time], ends, states)
            if time in starting:
                self._load_items(starting[time], job_of, work)
            if time < len(schedule.item):
                self._run_step(time, plans)
        return ends, states

    def _plan_steps(self, plan: BatchPlan, schedule: LaneSchedule) -> StepPlan:
        """Return the batches of all steps of the exchange [times, lanes, batch]."""
        item, step = (send_to_device(t, self.numbers.device) for t in (schedule.item, schedule.step))
        rows = item.clamp(min=0)
        return StepPlan(BatchPlan(*(t[rows, step] for t in plan)), step.to(self.numbers.dtype))

    def _run_step(self, time: int, plans: StepPlan) -> None:
        """Take one step in every lane: on a GPU by replaying the CUDA graph, on a CPU by calling the traced step."""
        if self.numbers.is_cuda:
            if time % PLANNED_STEPS == 0:
                self._load_plans(tree_map(lambda t: t[time : time + PLANNED_STEPS], plans))
            return self._replay_step()
        new = self._traced_step(self.carry, self.message, self.numbers, tree_map(lambda t: t[time], plans))
        self.carry = tree_map(torch.Tensor.contiguous, new)  # a constant comes as one element, expanded

    def _load_plans(self, plans: StepPlan) -> None:
        """Copy the batches of the next steps to where the CUDA graph reads them."""
        tree_map(lambda buffer, t: buffer[: len(t)].copy_(t), self._plans, plans)
        self._time.zero_()

    def _store_items(self, move: LaneMoves, ends: Tensor, states: Any) -> None:
        """Store models of finished items, and what their clients keep."""
        ends.index_copy_(0, move.items, move.select_lanes(self.carry.w))
        kept = self.carry.kept(self.optimiser)
        tree_map(lambda stored, lane: stored.index_copy_(0, move.items, move.select_lanes(lane)), states, kept)

    def _load_items(self, move: LaneMoves, job_of: Tensor, work: LaneWork) -> None:
        """Load new items into lanes: the message of their trial (as far as steps read it), their state and numbers."""

        def rows(new: Tensor) -> Tensor:
            return new.expand(len(move.items), *new.shape[1:]) if len(new) == 1 else new[job_of[move.items]]

        pairs = zip(state_tensors(self.message), state_tensors(work.messages), self._message_reads, strict=True)
        for lane, new, is_read in pairs:
            if is_read:
                lane.index_copy_(0, move.lanes, rows(new))
        self.carry.w.index_copy_(0, move.lanes, rows(work.messages.params))
        self.numbers.index_copy_(0, move.lanes, work.numbers[move.items])
        if not self.optimiser.keeps_state:
            tree_map(lambda lane: lane.index_fill_(0, move.lanes, 0.0), self.carry.moments)
        kept = self.carry.kept(self.optimiser)
        tree_map(lambda lane, new: lane.index_copy_(0, move.lanes, new[move.items]), kept, work.states)


def _without_shared_memory(new: LocalState, old: LocalState, others: Any) -> LocalState:
    """Return `new`, with copies of tensors that share memory with another one.

    A method may keep a tensor that it was given, such as the last w, or keep one tensor twice. Written in place over
    the old state, such tensors would overwrite each other.
    """
    taken = {StorageWeakRef(t.untyped_storage()) for t in [*state_tensors(old), *state_tensors(others)]}

    def copied(t: Tensor, before: Tensor) -> Tensor:
        memory = StorageWeakRef(t.untyped_storage())
        shared = memory in taken and memory != StorageWeakRef(before.untyped_storage())
        taken.add(memory)
        return t.clone() if shared else t

    return tree_map(copied, new, old)


class LaneMoves(NamedTuple):
    """Items that are loaded into lanes, or stored from them, at one time: item `items[i]` and lane `lanes[i]`.

    `all_lanes` says that these are all lanes, in order, so that nothing needs to be selected.
    """

    lanes: Tensor
    items: Tensor
    all_lanes: bool

    def select_lanes(self, t: Tensor) -> Tensor:
        """Return the rows of t [lanes, …] that belong to these lanes."""
        return t if self.all_lanes else t[self.lanes]


def _moves_by_time(rows: np.ndarray, lanes: int, device: torch.device) -> dict[int, LaneMoves]:
    """Turn rows (time, lane, item) into the moves at each time, sent to the device in one copy."""
    moved = send_to_device(np.ascontiguousarray(rows[:, 1:].T), device)
    times, first = np.unique(rows[:, 0], return_index=True)
    bounds = zip(times.tolist(), first.tolist(), [*first[1:].tolist(), len(rows)], strict=True)
    every = range(lanes)
    return {t: LaneMoves(moved[0, a:b], moved[1, a:b], rows[a:b, 1].tolist() == [*every]) for t, a, b in bounds}
