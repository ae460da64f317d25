"""The fast engine: it trains many clients at once, as lanes of one vectorised step.

`lane_training` has the lanes and their step, `lane_packing` decides which lane trains which clients, and `tracing`
makes the step fast. `Batched` gathers the clients of all jobs, trains them and makes their replies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedflat.core.local_training import LocalState, finish_local_training, reply_key
from fedflat.core.method import NO_KEY, Method, hyper_parameters, with_hyper_parameters
from fedflat.core.state import send_to_device, tree_map
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.kernels import use_lane_ops
from fedflat.engine.lane_packing import choose_lanes, schedule_lanes
from fedflat.engine.lane_training import Lanes, LaneWork
from fedflat.engine.rounds import CohortJob, TrainedCohort, average_replies
from fedflat.engine.tracing import trace_operations
from fedflat.errors import UserError


class Batched:
    """Trains all clients of a round, of all seeds, as lanes of one step.

    Args:
        method: the method.
        task: the model and its loss.
        source: where batches come from.
        lanes: the number of lanes; None lets `prepare`, or else the first round, choose it.
        lane_fields: the method's hyper-parameters that may differ between jobs. They are numbers of a lane, so that
            one step serves all jobs; see `takes_lane_values`.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        source: BatchSource,
        lanes: int | None = None,
        lane_fields: Sequence[str] = (),
    ) -> None:
        self.method, self.source, self.lanes, self.lane_fields = method, source, lanes, lane_fields
        self.task = task.with_model(use_lane_ops(task.model), task.compute).with_aligned_matrices()
        self._built_lanes: Lanes | None = None
        self._traced_replies: dict[tuple[int, int], tuple[Method, Callable[..., Any]]] = {}

    def prepare(self, rounds: Sequence[Sequence[int]]) -> None:
        """Choose the number of lanes that makes these rounds cheapest."""
        self.lanes = choose_lanes(rounds, max(len(lengths) for lengths in rounds))

    def train(self, jobs: Sequence[CohortJob]) -> list[TrainedCohort]:
        """Run one exchange."""
        with torch.no_grad():
            trained = zip(jobs, self.train_replies(jobs), strict=True)
            return [TrainedCohort(average_replies(replies, job), ends) for job, (replies, ends) in trained]

    def train_replies(self, jobs: Sequence[CohortJob]) -> list[tuple[Any, Tensor]]:
        """Run one exchange and return, for each job, the clients' replies, stacked, and their models [clients, P]."""
        with torch.no_grad():
            clients = [client for job in jobs for client in job.clients]
            seeds = [job.seed for job in jobs for _ in job.clients]
            lengths = self.source.lengths(seeds, jobs[0].round, clients, jobs[0].exchange)
            plan = self.source.plan(seeds, jobs[0].round, clients, jobs[0].exchange)
            schedule = schedule_lanes(lengths, self._lane_count(lengths))
            work = _gather_work(jobs, lengths, self.lane_fields)
            ends, states = self._build_lanes(work, plan).train(work, plan, schedule)
            return self._replies(work, plan, ends, states)

    def _lane_count(self, lengths: Sequence[int]) -> int:
        if self.lanes is None:
            self.prepare([lengths])
        assert self.lanes is not None
        return self.lanes

    def _build_lanes(self, work: LaneWork, plan: BatchPlan) -> Lanes:
        """Return the lanes, built in the first exchange."""
        if self._built_lanes is None:
            assert self.lanes is not None
            self._built_lanes = Lanes(self.method, self.task, self.source, self.lane_fields, self.lanes, work, plan)
        return self._built_lanes

    def _replies(self, work: LaneWork, plan: BatchPlan, ends: Tensor, states: Any) -> list[tuple[Any, Tensor]]:
        """Make the clients' replies and store their states, job by job."""
        keys = torch.where(plan.mask[:, 0, 0], reply_key(plan.key[:, 0]), int(NO_KEY))
        trained, first = [], 0
        for job in work.jobs:
            part = slice(first, first + len(job.clients))
            first = part.stop
            kept = tree_map(lambda t: t[part], states)
            inputs = (ends[part], kept, work.numbers[part], keys[part], job.message)
            replies, new_states = self._trace_replies(job, inputs)(*inputs)
            job.states.scatter(job.clients, new_states)
            trained.append((replies, ends[part]))
        return trained

    def _trace_replies(self, job: CohortJob, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the function that makes all replies of a job, traced when its method has so many clients first."""
        key = id(job.method), len(job.clients)
        if key not in self._traced_replies:
            function = vmap(_finish(job), in_dims=(0, 0, 0, 0, None))
            self._traced_replies[key] = job.method, trace_operations(function, *inputs)  # keeps the id in use
        return self._traced_replies[key][1]


def _finish(job: CohortJob) -> Callable[[Tensor, Any, Tensor, Tensor, Any], tuple[Any, Any]]:
    """Return the function from a client's model, state, numbers, key and message to its reply and what it keeps."""

    def finish(end: Tensor, kept: Any, numbers: Tensor, key: Tensor, message: Any) -> tuple[Any, Any]:
        optimiser = job.optimiser.with_numbers(numbers[:4])
        state = LocalState(end, kept.moments, kept.client) if optimiser.keeps_state else LocalState(end, (), kept)
        return finish_local_training(job.method, optimiser, state, message, numbers[4], key)

    return finish


def _gather_work(jobs: Sequence[CohortJob], lengths: Sequence[int], fields: Sequence[str]) -> LaneWork:
    """Put the clients of all jobs into one list, and stack their states, the messages and the clients' numbers."""
    job_of = [number for number, job in enumerate(jobs) for _ in job.clients]
    states = [job.states.gather(job.clients) for job in jobs]
    numbers = torch.cat([job.optimiser.numbers(len(job.clients)) for job in jobs])
    values = [[hyper_parameters(job.method)[field] for field in fields] for job in jobs]
    more = [[steps, *values[number]] for steps, number in zip(lengths, job_of, strict=True)]
    return LaneWork(
        jobs,
        job_of,
        [client for job in jobs for client in job.clients],
        tree_map(lambda *parts: torch.cat(parts), *states),
        tree_map(lambda *parts: torch.stack(parts), *(job.message for job in jobs)),
        torch.cat([numbers, send_to_device(more, numbers.device, numbers.dtype)], 1),
    )


@torch.no_grad()
def takes_lane_values(method: Method, field: str, task: Task, params: Tensor, batch: Batch) -> bool:
    """Return whether the method's step can be vectorised over values of a hyper-parameter.

    It cannot if the step asks `if self.rho`, or gives the value to a function that needs a Python number.

    Args:
        method: the method.
        field: the name of the hyper-parameter, as in `hyper_parameters`.
        task: the model and its loss.
        params: a model, [P].
        batch: the samples of a step.
    """
    message, client = method.broadcast(method.init_server(params)), method.init_client(params)

    def step(value: Tensor) -> Tensor:
        return with_hyper_parameters(method, {field: value}).step(task, params, batch, message, client)[0]

    try:
        vmap(step)(params.new_full((2,), hyper_parameters(method)[field]))
    except UserError:
        raise
    except Exception:  # whatever torch raises where a lane's value would have to become a Python number
        return False
    return True
