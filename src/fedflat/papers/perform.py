"""Train what is missing, group by group, within the time there is, and store each group when it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedflat.papers.extras import measure, wanted
from fedflat.papers.plan import Job, Request
from fedflat.papers.record import Record, curve, numbers, write
from fedflat.runs.build import choose_device
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import read_stored_run
from fedflat.runs.result import Result
from fedflat.runs.train_together import run_together

MEASURED = (3, 8)  # rounds of a call between which its speed is measured, after what is slow only once


Say = Callable[[str], None]


class BudgetSpent(Exception):
    """The time is over; the run folders keep what was trained up to their last checkpoint."""


class TooLong(Exception):
    """A group would not end in time, and others may."""


class Watch:
    """Estimates a group's time from its first rounds, and stops it when the budget is spent.

    Where there are `others` that may end in time, one that would not is stopped at once.
    """

    def __init__(self, label: str, rounds: int, request: Request, say: Say, others: bool) -> None:
        self.label, self.rounds, self.request, self.say, self.others = label, rounds, request, say, others
        self.calls, self.began = 0, (0.0, 0)

    def __call__(self, round: int, rows: list[dict[str, Any]]) -> None:
        """After every round."""
        self.calls += 1
        if self.calls in MEASURED and torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.calls == MEASURED[0]:
            self.began = (time.monotonic(), round)
        if self.calls == MEASURED[1]:
            self._foresee(round)
        if self.calls > MEASURED[1] and round % max(1, self.rounds // 10) == 0 and rows:
            self.say(f"{self.label}: round {round} of {self.rounds}, accuracy {rows[0]['accuracy']:.1%}")
        if self.request.left() < 0:
            raise BudgetSpent(f"stopped in round {round}; the same command goes on from the last checkpoint")

    def _foresee(self, round: int) -> None:
        """Say how long the rest will take; give way to others if that is too long."""
        start, first = self.began
        rest = (time.monotonic() - start) / (round - first) * (self.rounds - round)
        self.say(f"{self.label}: about {shown(rest)} more")
        if self.others and not self.request.fits(rest):
            raise TooLong(f"put off, {shown(self.request.left())} left")


def shown(seconds: float) -> str:
    """A time for people."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def perform(group: Sequence[Job], request: Request, say: Say, others: bool = False) -> None:
    """Train a group and store its records; raises BudgetSpent, and TooLong where others wait."""
    folders = [request.folder(job) for job in group]
    watch = Watch(_label(group), group[0].experiment.rounds, request, say, others)
    results = _train([job.experiment for job in group], folders, watch)
    together = sum(len(job.experiment.seeds) for job in group)
    for job, folder, result in zip(group, folders, results, strict=True):
        write(request.results, _record(job, folder, result, together, request))


def _train(experiments: Sequence[Experiment], folders: Sequence[Path], watch: Watch) -> list[Result]:
    """The results of all; those whose folder is complete are read."""
    done = {n: read_stored_run(folder).result for n, folder in enumerate(folders) if (folder / "result.json").exists()}
    left = [n for n in range(len(folders)) if n not in done]
    if left:
        new = run_together([experiments[n] for n in left], [folders[n] for n in left], resume=True, watch=watch)
        done |= dict(zip(left, new, strict=True))
    return [result for n in range(len(folders)) if (result := done[n])]


def _label(group: Sequence[Job]) -> str:
    """A group in words: its first cell, and how many more."""
    return group[0].label + (f" and {len(group) - 1} more" if len(group) > 1 else "")


def _record(job: Job, folder: Path, result: Result, together: int, request: Request) -> Record:
    """What is stored of one experiment."""
    seeds, trained = job.experiment.seeds, job.experiment
    asked = [cell.measure for cell in job.cells if "." in cell.measure]
    extra = measure(folder, wanted(job.cells), seeds, request.device)
    rows = {
        str(seed): {
            "numbers": {**dict.fromkeys(asked), **numbers(result, seed, trained), **extra[seed]},
            "diverged": seed in result.diverged_seeds,
            "curve": curve(result, seed),
            "run": 0,
        }
        for seed in seeds
    }
    run = {
        "seeds": list(seeds),
        "rounds": result.rounds,
        "seconds": result.seconds,
        "together": together,
        "client_steps_per_second": result.client_steps_per_second,
        "precision": _precision(trained),
        "data": request.data_note or str(trained.dataset),
        "commit": commit(),
        "versions": result.versions,
    }
    return Record(request.name(job.cells[0]), experiment_to_dict(trained), trained.rounds, rows, [run])


def _precision(experiment: Experiment) -> str:
    """What auto meant."""
    automatic = "tf32" if choose_device(experiment.device).type == "cuda" else "fp32"
    return automatic if experiment.precision == "auto" else experiment.precision


def commit() -> str | None:
    """The commit of this code, with a mark where files differ from it; None outside a repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
