"""Experiments that train in milliseconds: 24 samples of two classes, a linear model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.method import Cohort
from fedflat.engine.rounds import CohortJob, TrainedCohort
from fedflat.methods.fedavg import FedAvg


def tiny_dataset() -> ff.Dataset:
    """Return 24 samples of four numbers, whose sign says the class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 2
    x = torch.randn(24, 4, generator=generator) + (2 * y - 1)[:, None]
    return ff.Dataset("tiny", x, y, x, y, classes=2)


def tiny_experiment(**options: Any) -> ff.Experiment:
    """Return an experiment of 4 clients with 6 samples each, two in a round, three steps each."""
    defaults: dict[str, Any] = {
        "method": FedAvg(),
        "dataset": tiny_dataset(),
        "model": lambda: nn.Linear(4, 2),
        "clients": 4,
        "cohort": 2,
        "partition": "iid",
        "batch_size": 2,
        "local_epochs": 1,
        "rounds": 3,
        "engine": "sequential",
    }
    return ff.Experiment(**defaults | options)


def nan_in_seeds(*seeds: int) -> Any:
    """Return a function that builds a linear model, with weights that are not a number in some seeds."""

    def build() -> nn.Module:
        model = nn.Linear(4, 2)
        if torch.initial_seed() in seeds:
            nn.init.constant_(model.weight, torch.nan)
        return model

    return build


class RecordingEngine:
    """Trains nothing and keeps the jobs: every reply is a change of zeros."""

    def __init__(self) -> None:
        self.jobs: list[CohortJob] = []

    def prepare(self, rounds: Any) -> None:
        """Do nothing."""

    def train(self, jobs: list[CohortJob]) -> list[TrainedCohort]:
        """Return zeros."""
        self.jobs += jobs
        return [self._stay(job) for job in jobs]

    def _stay(self, job: CohortJob) -> TrainedCohort:
        params: Tensor = job.message.params
        reply = ff.Reply(torch.zeros_like(params))
        return TrainedCohort(
            Cohort(reply, reply, len(job.clients), job.population), params.expand(len(job.clients), -1)
        )
