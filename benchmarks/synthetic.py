"""Random images for any number of clients, and rounds of several trainings timed in turn."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

import fedflat
from fedflat.runs.build import build_run
from fedflat.runs.training import Training

CLASSES = 10


def images(clients: int, samples: int, shape: tuple[int, int, int]) -> fedflat.Dataset:
    """`samples` images for each of `clients` clients, and as many for testing as one client has."""
    count = clients * samples
    x = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y, owner = torch.arange(count) % CLASSES, torch.arange(count) // samples
    return fedflat.Dataset("synthetic", x, y, x[:samples], y[:samples], CLASSES, owner=owner)


class Times(NamedTuple):
    """Of every round: seconds by the clock, and of the processor (which other programs disturb less)."""

    wall: list[float]
    cpu: list[float]


class Timed:
    """A training whose rounds are timed."""

    def __init__(self, experiment: fedflat.Experiment) -> None:
        begin = time.perf_counter()
        self.training = Training(experiment, build_run(experiment), None)
        self.times = Times([], [])
        self.play(warm=True)
        self.startup = time.perf_counter() - begin

    def play(self, warm: bool = False) -> None:
        """One round, with the evaluation left out."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.training.play_round()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if not warm:
            self.times.wall.append(time.perf_counter() - wall)
            self.times.cpu.append(time.process_time() - cpu)


def in_turn(timed: list[Timed], rounds: int) -> None:
    """`rounds` rounds of each in changing order, so that a busy moment of the machine strikes all of them."""
    for turn in range(rounds):
        first = turn % len(timed)
        for one in timed[first:] + timed[:first]:
            one.play()
