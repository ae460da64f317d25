"""What anyone writes who trains clients with PyTorch: modules, an epoch over batches, accuracy. Needs torch only."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def digits_cnn() -> nn.Module:
    """fedflat's digits-cnn."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def fedavg_cnn() -> nn.Module:
    """fedflat's fedavg-cnn on CIFAR-10."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def pfl_cnn() -> nn.Module:
    """fedflat's pfl-cnn on CIFAR-10."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def blazefl_cnn() -> nn.Module:
    """LeNet-5 with three channels and max-pooling: 62,006 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Job(NamedTuple):
    """FedAvg on digits: normalised images, the clients they belong to, and how they are trained."""

    x: Tensor
    y: Tensor
    owner: Tensor
    x_test: Tensor
    y_test: Tensor
    rounds: int
    cohort: int
    local_epochs: int
    batch_size: int
    lr: float
    seed: int

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """The samples of one client."""
        rows = self.owner == number
        return self.x[rows], self.y[rows]

    @property
    def clients(self) -> int:
        return int(self.owner.max()) + 1


@functools.cache
def load_job(path: str) -> Job:
    """What `save_job` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return Job(**{name: torch.from_numpy(a) if a.ndim else a.item() for name, a in file.items()})


def save_job(path: str, job: Job) -> None:
    """One file that every framework's script reads."""
    np.savez(path, **{name: np.asarray(value) for name, value in job._asdict().items()})


def train(model: nn.Module, x: Tensor, y: Tensor, job: Job) -> None:
    """Some epochs of SGD over shuffled batches."""
    optimiser = torch.optim.SGD(model.parameters(), lr=job.lr)
    for _ in range(job.local_epochs):
        for rows in torch.randperm(len(y)).split(job.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()


def crop_and_flip(x: Tensor, most: int) -> Tensor:
    """Each image moved by up to `most` pixels, black where nothing was, and half of them mirrored."""
    size, side = len(x), x.shape[-1]
    pixels = torch.arange(side, device=x.device)
    top, left = torch.randint(2 * most + 1, (2, size, 1), device=x.device)
    mirrored = torch.rand(size, 1, device=x.device) < 0.5
    rows, columns = top + pixels, left + torch.where(mirrored, side - 1 - pixels, pixels)
    images = torch.arange(size, device=x.device)[:, None, None]
    return F.pad(x, [most] * 4)[images, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def cut_out(x: Tensor, side: int) -> Tensor:
    """A square of each image made 0, its centre anywhere."""
    pixels = torch.arange(x.shape[-1], device=x.device)
    place = pixels - torch.randint(x.shape[-1], (2, len(x), 1), device=x.device) + side // 2
    rows, columns = (place >= 0) & (place < side)
    return x.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 2000) -> float:
    """Fraction of samples whose class the model names."""
    model.eval()
    right = sum((model(a).argmax(1) == b).sum() for a, b in zip(x.split(batch_size), y.split(batch_size), strict=True))
    model.train()
    return float(right) / len(y)


class Moment(NamedTuple):
    """The clock, and the processor time this process has used."""

    wall: float
    cpu: float


def now() -> Moment:
    return Moment(time.perf_counter(), time.process_time())


def timing(begin: Moment, ends: Sequence[Moment], accuracies: Sequence[float]) -> dict[str, object]:
    """What every script prints: `ends` are the ends of the rounds; the first round counts as start-up."""
    rounds = max(len(ends) - 1, 1)
    wall, cpu = ((last - first) / rounds for first, last in zip(ends[0], ends[-1], strict=True))
    times = {"startup_s": ends[0].wall - begin.wall, "s_per_round": wall, "cpu_s_per_round": cpu}
    return times | {"accuracies": list(accuracies)}
