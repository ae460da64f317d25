"""Clients that train on their own: plain SGD on the local loss, nothing is averaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.method import Message, Method
from fedflat.core.state import ClientStore
from fedflat.data.batches import ClientBatches
from fedflat.engine import ENGINES
from fedflat.engine.rounds import CohortJob
from fedflat.runs.build import choose_engine
from fedflat.runs.read import TrainedRun


class Alone:
    """Trains clients of a finished run for some epochs on `parts`, with the run's engine and optimiser."""

    def __init__(self, run: TrainedRun, epochs: int, parts: Sequence[np.ndarray]) -> None:
        here, experiment = run.assembly.feed, run.experiment
        data = dataclasses.replace(here.dataset, x=here.x, y=here.y)  # already on the device
        self.feed = ClientBatches(data, parts, experiment.batch_size, epochs, here.spec, here.y.device, here.dtype)
        engine = choose_engine(experiment, run.assembly.task, self.feed.y.device)
        self.engine = ENGINES[engine](Method(), run.assembly.task, self.feed)
        self.experiment = experiment

    def train(self, seed: int, round: int, clients: Sequence[int], starts: Sequence[Tensor], lr: float) -> list[Tensor]:
        """Where each client ends; seed and round number the randomness."""
        rate = torch.tensor(lr, dtype=self.feed.dtype, device=self.feed.y.device)
        sgd = SGD(rate, self.experiment.momentum, self.experiment.weight_decay)
        one, nothing = torch.ones_like(rate)[None], ClientStore(())
        jobs = [
            CohortJob(seed, round, 0, [client], one, 1, Message(start), nothing, sgd)
            for client, start in zip(clients, starts, strict=True)
        ]
        return [done.ends[0] for done in self.engine.train(jobs)]


def rounds_alone(run: TrainedRun) -> int:
    """In how many rounds of the run a client took part on average."""
    experiment = run.experiment
    return max(1, round(experiment.rounds * experiment.cohort / len(run.assembly.parts)))


def local_only(run: TrainedRun, alone: Alone, seed: int, clients: Sequence[int], start: Tensor) -> list[Tensor]:
    """What each client learns from its own data with the average client's share of the run's work.

    As many rounds as it would have taken part in, from the run's initial model; learning rates are spread over the
    run's schedule and momentum starts anew in each round, as in the run.
    """
    rounds, models = rounds_alone(run), [start] * len(clients)
    for r in range(rounds):
        lr = run.experiment.lr * run.experiment.lr_decay ** (r * run.experiment.rounds / rounds)
        models = alone.train(seed, r, clients, models, lr)
    return models
