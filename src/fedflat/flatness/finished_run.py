"""The settings of an analysis, and a finished run as it is measured: models, samples, and the next local models."""

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

from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import send_to_device
from fedflat.core.task import Batch
from fedflat.engine.participation import choose_cohort
from fedflat.engine.rounds import Trial, play_round
from fedflat.engine.sequential import Sequential
from fedflat.errors import UserError
from fedflat.flatness.objective import Objective, loss_and_accuracy, make_objective, pick_samples
from fedflat.methods.running_averages import with_server_statistics
from fedflat.options import Count, DeviceName, Index, Range
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import TrainedRun, read_experiment, read_trained_run

MeasurementName = Literal[
    "hessian",
    "landscape",
    "lpf",
    "discrepancy",
    "barrier",
    "barriers",
    "path",
    "spectrum",
    "local",
    "local-landscape",
    "trajectory",
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
    """Samples on which the global model is measured; training samples are used without augmentation."""
    samples: Count | None = None
    """Number of samples to measure on, drawn at random (of each client for local measurements); none means all."""
    seed: Index = 0
    """Seed of random directions, noise, probe vectors and drawn samples."""
    run_seeds: tuple[Index, ...] = ()
    """Seeds of the runs to measure; all unless given."""
    clients: tuple[Index, ...] = ()
    """Clients for local measurements; the next round's cohort (discrepancy: all clients) unless given."""
    top: Annotated[int, Range(1, 100)] = 5
    """Number of eigenvalues of the Hessian."""
    solver: Literal["lanczos", "power"] = "lanczos"
    """How eigenvalues are computed: Lanczos to convergence, or 20 steps of power iteration as in FedGloSS."""
    probes: Annotated[int, Range(2, 10_000)] = 10
    """Number of random vectors for the trace and the spectrum."""
    grid: Annotated[int, Range(2, 1001)] = 21
    """Points on each axis of a landscape, on a path, and on the line between two models."""
    extent: Length = 1.0
    """How far landscapes and paths reach from the model, in lengths of their directions."""
    directions: Literal["random", "eigen"] = "random"
    """Axes of landscapes: random filter-normalised directions that all runs share, or each model's top two
    eigenvectors."""
    sigma: Length = 0.01
    """Standard deviation of the noise of the low-pass filter."""
    draws: Annotated[int, Range(4, 10**6)] = 100
    """Number of noise vectors, in pairs of opposite ones."""
    rho: Length = 0.1
    """Radius of the flatness discrepancy."""
    ascent_steps: Annotated[int, Range(1, 10_000)] = 20
    """Steps of the search for the highest loss within that radius; 1 is SAM's approximation."""
    trajectory_rounds: Annotated[int, Range(2, 10_000)] = 20
    """Rounds of the trajectory at which the server's and the clients' models are recorded, evenly spread."""
    plane: Literal["own", "shared"] = "own"
    """Plane of trajectories: each run's own, or one for all runs of the same seed and architecture."""
    batch_size: Count = 1000
    """Samples per pass; fewer need less memory."""
    device: DeviceName = "auto"
    """Where to compute: cpu, cuda, cuda:1 for the second GPU, mps, or auto, which is cuda if there is one."""


class FinishedRun:
    """A finished run with everything that measurements need. Raises UserError if the run cannot be measured.

    Args:
        path: the run's folder.
        settings: what is measured and how.
        python_objects: the `dataset` and `model` of a run that was given them as Python objects.
    """

    def __init__(self, path: Path, settings: AnalysisSettings, python_objects: Mapping[str, Any] | None = None) -> None:
        self.path, self.name, self.settings = path, os.path.basename(os.path.abspath(path)), settings
        self.trained = _read(path, settings, python_objects or {})
        built = self.trained.built
        self.task = built.task.with_model(built.task.model)  # computes in the parameters' precision, not the run's
        self.client_rows = built.client_rows
        self.data = self._objective(built.client_data.test(), self.name) if settings.on == "test" else self.train_data
        self.model_metrics = {trial.seed: self._metrics(trial) for trial in self._chosen_trials()}
        self.trials = self._finite_trials()

    def _chosen_trials(self) -> list[Trial]:
        """Return the trials of the setting `run_seeds`, all by default."""
        known = {trial.seed: trial for trial in self.trained.trials}
        chosen = self.settings.run_seeds or tuple(known)
        for seed in chosen:
            if seed not in known:
                raise UserError("run_seeds", seed, f"run {self.path} has seeds {' '.join(map(str, known))}")
        return [known[seed] for seed in dict.fromkeys(chosen)]

    def _metrics(self, trial: Trial) -> dict[str, float]:
        """Return loss and accuracy of a trial's final model on the samples of the setting `on`."""
        if trial.server.params.shape != (self.task.size,):
            raise UserError(None, f"run {self.path}", "its checkpoint does not belong to its config.yaml")
        return loss_and_accuracy(with_server_statistics(self.task, trial.server), trial.server.params, self.data)

    def _finite_trials(self) -> list[Trial]:
        """Return the chosen trials whose loss is finite, and print the seeds of the others."""
        infinite = [seed for seed, metrics in self.model_metrics.items() if not math.isfinite(metrics["model_loss"])]
        problem = ", ".join(f"seed {seed} has a loss that is not finite" for seed in infinite)
        if len(infinite) == len(self.model_metrics):
            raise UserError(None, f"run {self.path}", f"{problem}; nothing can be measured")
        if infinite:
            print(f"run {self.path}: {problem} and is left out", file=sys.stderr)
        return [trial for trial in self._chosen_trials() if trial.seed not in infinite]

    def _training_samples(self, rows: np.ndarray) -> Batch:
        """Return training samples without augmentation, in a fixed random order.

        The order matters to models with batch statistics: a batch must not hold the samples of one client or class.
        """
        rows_in_order = torch.as_tensor(rows, dtype=torch.int64)
        order = hash_words(purpose_key("flatness order"), rows_in_order).argsort(stable=True)
        return self.trained.built.client_data.samples(rows_in_order[order])

    def chosen_clients(self, trial: Trial, default: Sequence[int] | None = None) -> list[int]:
        """Return the clients of local measurements.

        They are those of the setting `clients`, else `default`, else the cohort of the round after the last.
        If nobody would reply in that round, they are drawn uniformly.
        """
        population = len(self.client_rows)
        for client in self.settings.clients:
            if client >= population:
                raise UserError("clients", client, f"run {self.path} has clients 0 to {population - 1}")
        if chosen := list(dict.fromkeys(self.settings.clients)) or default:
            return list(chosen)
        participation = self.trained.built.participation
        next_cohort = participation.replying(trial.seed, self.trained.rounds)
        return next_cohort or choose_cohort(trial.seed, self.trained.rounds, population, participation.size)

    def local_data(self, client: int) -> Objective:
        """Return the mean loss F_i over a client's training samples."""
        return self._objective(self._training_samples(self.client_rows[client]), f"{self.name} client {client}")

    @cached_property
    def train_data(self) -> Objective:
        """The mean loss over all clients' training samples."""
        return self._objective(self._training_samples(np.concatenate(self.client_rows)), self.name)

    def _objective(self, samples: Batch, label: str) -> Objective:
        """Return the mean loss over as many of the samples as the setting `samples` says."""
        settings = self.settings
        return make_objective(pick_samples(samples, settings.samples, settings.seed), settings.batch_size, label)

    def next_local_models(self, trial: Trial, clients: Sequence[int]) -> Tensor:
        """Return the models [clients, P] after local training in one round after the last; the trial is not changed.

        Clients start from what the method sends next: w, a perturbed w, or, where w is a mean over rounds, the server's
        last model. They train one after another: for a single round starting the batched engine does not pay.
        """
        experiment, built = self.trained.experiment, self.trained.built
        sizes = [len(self.client_rows[c]) if experiment.weights == "examples" else 1 for c in clients]
        device, dtype = built.client_data.y.device, built.client_data.dtype
        weights = send_to_device(sizes, device, dtype)
        optimiser = experiment.optimiser_at(self.trained.rounds, weights)
        trained = play_round(
            built.method,
            Sequential(built.method, built.task, built.client_data),
            [copy.deepcopy(trial)],
            self.trained.rounds,
            [clients],
            [weights],
            len(self.client_rows),
            built.participation.with_client_lrs(optimiser, experiment.lr, clients),
        )
        return trained[0].ends


def _read(path: Path, settings: AnalysisSettings, python_objects: Mapping[str, Any]) -> TrainedRun:
    """Read the run; raise UserError with the folder's name for whatever is wrong with it."""
    advice = "give it again in Python: fedflat.analyse(RUN, dataset=..., model=...)"
    try:
        return read_trained_run(path, _adapted(read_experiment(path), settings, python_objects), advice)
    except UserError as error:
        names_folder = str(path) in str(error.value)
        raise error if names_folder else UserError(None, path, error) from None


def _adapted(experiment: Experiment, settings: AnalysisSettings, python_objects: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the device of the settings, without TF32, and with the user's Python objects."""
    precision = "auto" if experiment.precision == "tf32" else experiment.precision
    adapted = dataclasses.replace(experiment, device=settings.device, precision=precision, **python_objects)
    for name in python_objects:
        given, expected = experiment_to_dict(adapted)[name], getattr(experiment, name)
        if given != expected:
            raise UserError(name, given, f"was given, but the run has {expected}")
    return adapted
