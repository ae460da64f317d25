"""The fast engine: clients are lanes of one vmapped step, traced once and, on a GPU, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedflat.core.local_training import SGD, LocalState, finish_local_training
from fedflat.core.method import Method
from fedflat.core.state import send_to_device, tree_map
from fedflat.core.task import Task
from fedflat.data.batches import BatchPlan, BatchSource
from fedflat.engine.bench import Bench, Work
from fedflat.engine.contract import Job, Trained, summarise
from fedflat.engine.packing import choose_lanes, schedule
from fedflat.kernels.layers import use_lane_ops


class Batched:
    """Trains all clients of a round, and all seeds, as lanes of one step."""

    def __init__(self, method: Method, task: Task, source: BatchSource, lanes: int | None = None) -> None:
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

    def _bench_for(self, work: Work, plan: BatchPlan, sgd: SGD) -> Bench:
        """The lanes, made at the first round."""
        if self._bench is None:
            assert self.lanes is not None
            self._bench = Bench(self.method, self.task, self.source, self.lanes, work, plan, sgd)
        return self._bench

    def _conclude(self, work: Work, ends: Tensor, states: Any, lengths: Sequence[int]) -> list[Trained]:
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
