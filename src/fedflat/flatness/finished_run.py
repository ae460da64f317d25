"""A finished run, ready to be analysed: its models, its samples, and the models its clients would send next."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedflat.core.local_training import SGD
from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch, Task
from fedflat.data.augment import normalise
from fedflat.engine.rounds import Trial, choose_cohort, play_round
from fedflat.engine.sequential import Sequential
from fedflat.errors import UserError
from fedflat.flatness.objective import Objective, loss_and_accuracy, make_objective, pick_samples
from fedflat.options import Count, Index, Range
from fedflat.runs.config import experiment_to_dict, load_experiment
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import TrainedRun, read_trained_run

MeasurementName = Literal[
    "hessian", "landscape", "lpf", "discrepancy", "barrier", "path", "spectrum", "local", "local-landscape"
]


Length = Annotated[float, Range(0, 1e6, open=True)]


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    """Measure how flat the models of finished runs are; results go to analysis/ in each run's folder."""

    what: tuple[MeasurementName, ...] = (
        "hessian",
        "landscape",
        "lpf",
        "discrepancy",
        "barrier",
        "path",
        "spectrum",
        "local",
    )
    """What to measure (docs/analysis.md)."""
    on: Literal["test", "train"] = "test"
    """Samples on which the global model is measured; training samples are not augmented."""
    samples: Count | None = None
    """Measure on this many samples (of each client for local measurements) drawn at random; none is all."""
    seed: Index = 0
    """Seed of directions, noise, probes and drawn samples."""
    run_seeds: tuple[Index, ...] = ()
    """Seeds of the runs to measure; all unless given."""
    clients: tuple[Index, ...] = ()
    """Clients for local measurements; the next round's cohort (discrepancy: all clients) unless given."""
    top: Annotated[int, Range(1, 100)] = 5
    """Number of eigenvalues."""
    solver: Literal["lanczos", "power"] = "lanczos"
    """How eigenvalues are found: to convergence, or by 20 steps of power iteration as FedGloSS does."""
    probes: Annotated[int, Range(2, 10_000)] = 10
    """Random vectors for the trace and the spectrum."""
    grid: Annotated[int, Range(2, 1001)] = 21
    """Points per axis of a landscape, along a path, and per model on the way between two."""
    extent: Length = 1.0
    """How far landscapes and paths reach from the model, in lengths of their directions."""
    directions: Literal["random", "eigen"] = "random"
    """Axes of landscapes: random filter-normalised ones that all runs share, or each model's top two eigenvectors."""
    sigma: Length = 0.01
    """Standard deviation of the noise of the low-pass filter."""
    draws: Annotated[int, Range(4, 10**6)] = 100
    """Draws of that noise, in pairs of opposite ones."""
    rho: Length = 0.1
    """Radius of the flatness discrepancy."""
    ascent_steps: Annotated[int, Range(1, 10_000)] = 20
    """Steps towards the highest loss within that radius; 1 is SAM's approximation."""
    batch_size: Count = 1000
    """Samples per pass; fewer need less memory."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes a GPU if there is one."""


class FinishedRun:
    """One run; raises UserError where it cannot be measured. `own` are data or model that config.yaml cannot name."""

    def __init__(self, path: Path, settings: AnalysisSettings, own: Mapping[str, Any] | None = None) -> None:
        self.path, self.name, self.settings = path, os.path.basename(os.path.abspath(path)), settings
        self.run = _read(path, settings, own or {})
        self.task = Task(self.run.assembly.task.model)  # parameters' precision, whatever the run trained in
        self.parts = self.run.assembly.parts
        self.data = self._cut(self.run.assembly.feed.test(), self.name) if settings.on == "test" else self.everything
        self.scores = {trial.seed: self._score(trial) for trial in self._chosen()}
        self.trials = self._finite()

    def _chosen(self) -> list[Trial]:
        """The trials of --run-seeds, all unless given."""
        known = {trial.seed: trial for trial in self.run.trials}
        wanted = self.settings.run_seeds or tuple(known)
        for seed in wanted:
            if seed not in known:
                raise UserError(f"--run-seeds {seed}: run {self.path} has seeds {' '.join(map(str, known))}")
        return [known[seed] for seed in dict.fromkeys(wanted)]

    def _score(self, trial: Trial) -> dict[str, float]:
        """Loss and accuracy of the model that is measured."""
        if trial.server.params.shape != (self.task.size,):
            raise UserError(f"run {self.path}: its checkpoint does not belong to its config.yaml")
        return loss_and_accuracy(self.task, trial.server.params, self.data)

    def _finite(self) -> list[Trial]:
        """The chosen trials whose loss is finite; says which are not."""
        lost = [seed for seed, found in self.scores.items() if not math.isfinite(found["model_loss"])]
        said = f"run {self.path}: " + ", ".join(f"seed {seed} has a loss that is not finite" for seed in lost)
        if len(lost) == len(self.scores):
            raise UserError(f"{said}; nothing can be measured")
        if lost:
            print(f"{said} and is left out", file=sys.stderr)
        return [trial for trial in self._chosen() if trial.seed not in lost]

    def _rows(self, rows: np.ndarray) -> Batch:
        """Training samples without augmentation, mixed: batch statistics must not be those of one client or class."""
        feed, data = self.run.assembly.feed, self.run.assembly.dataset
        places = torch.as_tensor(rows, dtype=torch.int64)
        at = send_to_device(
            places[hash_words(purpose_key("flatness order"), places).argsort(stable=True)], feed.y.device
        )
        x = normalise(feed.x[at], data.mean, data.std, feed.dtype)
        return Batch(x, feed.y[at], torch.ones_like(at, dtype=torch.bool), None)

    def clients(self, trial: Trial, default: Sequence[int] | None = None) -> list[int]:
        """The clients of --clients, else `default`, else the cohort of the round after the last."""
        population, experiment = len(self.parts), self.run.experiment
        for client in self.settings.clients:
            if client >= population:
                raise UserError(f"--clients {client}: run {self.path} has clients 0 to {population - 1}")
        chosen = list(dict.fromkeys(self.settings.clients)) or default
        return list(chosen or choose_cohort(trial.seed, experiment.rounds, population, experiment.cohort))

    def own(self, client: int) -> Objective:
        """A client's training samples."""
        return self._cut(self._rows(self.parts[client]), f"{self.name} client {client}")

    @cached_property
    def everything(self) -> Objective:
        """All clients' training samples."""
        return self._cut(self._rows(np.concatenate(self.parts)), self.name)

    def _cut(self, samples: Batch, label: str) -> Objective:
        """--samples of them, in batches."""
        return make_objective(
            pick_samples(samples, self.settings.samples, self.settings.seed), self.settings.batch_size, label
        )

    def ends(self, trial: Trial, clients: Sequence[int]) -> Tensor:
        """The models [clients, P] at the end of local training in one round after the last; the trial stays as it is.

        Clients start from what the method sends next: w, w perturbed, or the server's last model where w is a mean.
        One client after another: a single round does not repay what the batched engine needs to start.
        """
        experiment, assembly = self.run.experiment, self.run.assembly
        rate = experiment.lr * experiment.lr_decay**experiment.rounds
        sizes = [len(self.parts[c]) if experiment.weights == "examples" else 1 for c in clients]
        lr, weights = (send_to_device(v, assembly.feed.y.device, assembly.feed.dtype) for v in (rate, sizes))
        trained = play_round(
            experiment.method,
            Sequential(experiment.method, assembly.task, assembly.feed),
            [copy.deepcopy(trial)],
            experiment.rounds,
            [clients],
            [weights],
            len(self.parts),
            SGD(lr, experiment.momentum, experiment.weight_decay),
        )
        return trained[0].ends


def _read(path: Path, settings: AnalysisSettings, own: Mapping[str, Any]) -> TrainedRun:
    """The run; whatever is wrong with its folder is a UserError that names it."""
    if not (path / "config.yaml").exists():
        raise UserError(f"{path}: not a run folder (config.yaml is missing)")
    try:
        return read_trained_run(path, _here(load_experiment(path / "config.yaml"), settings, own))
    except UserError as error:
        raise error if str(path) in str(error) else UserError(f"{path}: {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged run folder ({type(error).__name__}: {error})") from None


def _here(experiment: Experiment, settings: AnalysisSettings, own: Mapping[str, Any]) -> Experiment:
    """The experiment on this device, with no precision that only others have, and with the user's objects."""
    precision = "auto" if experiment.precision == "tf32" else experiment.precision
    here = dataclasses.replace(experiment, device=settings.device, precision=precision, **own)
    for name in own:
        if experiment_to_dict(here)[name] != getattr(experiment, name):
            raise UserError(
                f"{name}: {experiment_to_dict(here)[name]} was given, the run has {getattr(experiment, name)}"
            )
    return here
