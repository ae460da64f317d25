"""One function per measurement of `fedflat analyse`: numbers for the table, arrays for figures, columns for the CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.vectors import norm, unit
from fedflat.engine.rounds import Trial
from fedflat.flatness.finished_run import FinishedRun
from fedflat.flatness.hessian import (
    Eigenpairs,
    Hessian,
    hessian_trace,
    largest_eigenpairs,
    power_iteration,
    spectral_density,
)
from fedflat.flatness.landscape import (
    LossSurface,
    loss_along,
    loss_barrier,
    loss_between,
    loss_surface,
    random_directions,
)
from fedflat.flatness.objective import join_objectives, loss_and_accuracy, loss_and_gradient
from fedflat.flatness.sharpness import flatness_discrepancy, local_and_global_curvature, low_pass_loss


class Measurement(NamedTuple):
    """Single numbers, columns of equal length, the arrays of figures where they are not the columns, and the number of
    samples where they are not the run's."""

    numbers: dict[str, Any]
    columns: dict[str, Any]
    arrays: dict[str, Any] | None = None
    samples: int | None = None


class ModelToMeasure:
    """One model of one run, beside all the models (`peers`) with which it shares random directions."""

    def __init__(self, subject: FinishedRun, trial: Trial, peers: Sequence[Tensor]) -> None:
        self.subject, self.trial, self.peers = subject, trial, peers
        self.task, self.w, self.settings = subject.task, trial.server.params, subject.settings
        self.data = subject.data._replace(label=f"{subject.name} seed {trial.seed}")
        self.hessian = Hessian(self.task, self.w, self.data)

    @cached_property
    def eigen(self) -> Eigenpairs:
        """The largest eigenvalues, found once for the table and for the axes of landscapes."""
        solve = largest_eigenpairs if self.settings.solver == "lanczos" else power_iteration
        return solve(self.hessian, max(self.settings.top, 2), seed=self.settings.seed)

    @cached_property
    def directions(self) -> Tensor:
        """The axes of landscapes."""
        if self.settings.directions == "eigen":
            return self.eigen.vectors[:2]
        return random_directions(self.task, self.peers, self.settings.seed)


def measure_hessian(case: ModelToMeasure) -> Measurement:
    """λ1, …, λk, λ1/λ5 and the trace."""
    values = case.eigen.values[: case.settings.top].tolist()
    total = hessian_trace(case.hessian, case.settings.probes, case.settings.seed)
    numbers = {"lambda1": values[0], "lambda1_over_lambda5": case.eigen.ratio()}
    numbers |= {"trace": total.value, "trace_error": total.error}
    return Measurement(numbers, {"number": [*range(1, len(values) + 1)], "eigenvalue": values})


def measure_spectrum(case: ModelToMeasure) -> Measurement:
    """The density of eigenvalues."""
    found = spectral_density(case.hessian, case.settings.probes, seed=case.settings.seed)
    grid, density = found.density()
    columns = {"eigenvalue": grid, "density": density}
    numbers = {"smallest": float(found.nodes.min()), "largest": float(found.nodes.max()), "trace": found.trace.value}
    return Measurement(numbers, columns, {**columns, "nodes": found.nodes, "weights": found.weights})


def measure_low_pass(case: ModelToMeasure) -> Measurement:
    """The mean loss under Gaussian noise."""
    found = low_pass_loss(case.task, case.w, case.data, case.settings.sigma, case.settings.draws, case.settings.seed)
    numbers = {"lpf": found.value, "lpf_error": found.error, "rise": found.value - found.loss}
    return Measurement(numbers, {"pair": [*range(len(found.pairs))], "loss": found.pairs})


def measure_path(case: ModelToMeasure) -> Measurement:
    """The loss along the gradient, and its mean and standard deviation along random filter-normalised directions."""
    settings = case.settings
    slope = loss_and_gradient(case.task, case.w, case.data)[1]
    random = random_directions(case.task, case.peers, settings.seed, 10)
    lines = [
        loss_along(case.task, case.w, d, settings.extent, settings.grid, case.data) for d in [unit(slope), *random]
    ]
    around = torch.stack([line.loss for line in lines[1:]])
    columns = {"distance": lines[0].at, "along_gradient": lines[0].loss}
    columns |= {"along_random": around.mean(0), "along_random_std": around.std(0)}
    return Measurement({"gradient_norm": float(norm(slope))}, columns)


def measure_landscape(case: ModelToMeasure) -> Measurement:
    """The loss on a square around the model."""
    settings = case.settings
    found = loss_surface(case.task, case.w, case.directions, settings.extent, settings.grid, case.data)
    x, y = _places(found)
    arrays = {"x": found.x, "y": found.y, "loss": found.loss}
    return Measurement({"highest": float(found.loss.max())}, {"x": x, "y": y, "loss": found.loss.flatten()}, arrays)


def _places(found: LossSurface) -> tuple[Tensor, Tensor]:
    """x and y of every point of a surface, row by row."""
    return found.x.repeat(len(found.y)), found.y.repeat_interleave(len(found.x))


def measure_local(case: ModelToMeasure) -> Measurement:
    """λ1 of clients' models on their own and on all training samples."""
    subject = case.subject
    clients = subject.clients(case.trial)
    own = [subject.own(client) for client in clients]
    found = local_and_global_curvature(
        case.task, subject.ends(case.trial, clients), own, subject.everything, case.settings.seed
    )
    columns: dict[str, list[float]] = {"client": [*clients], "samples": [len(subject.parts[c]) for c in clients]}
    columns |= {"lambda_local": [pair.own for pair in found], "lambda_global": [pair.all for pair in found]}
    means = {f"mean_{name}": sum(columns[name]) / len(clients) for name in ("lambda_local", "lambda_global")}
    numbers = loss_and_accuracy(case.task, case.w, subject.everything) | means
    return Measurement(numbers, columns, samples=subject.everything.samples())


def measure_local_landscape(case: ModelToMeasure) -> Measurement:
    """The loss around clients' models on their own and on all training samples, on the same axes."""
    subject, settings = case.subject, case.settings
    clients = subject.clients(case.trial)
    surfaces: list[dict[str, Any]] = []
    for client, end in zip(clients, subject.ends(case.trial, clients), strict=True):
        own, everyone = (
            loss_surface(case.task, end, case.directions, settings.extent, settings.grid, data)
            for data in (subject.own(client), subject.everything)
        )
        surfaces.append({"client": client, "own": own.loss, "all": everyone.loss})
    x, y = _places(own)
    columns = {"client": [client for client in clients for _ in x], "x": x.repeat(len(clients))}
    columns |= {"y": y.repeat(len(clients))}
    columns |= {name: torch.cat([s[name].flatten() for s in surfaces]) for name in ("own", "all")}
    arrays = {"x": own.x, "y": own.y, "surfaces": surfaces}
    return Measurement(
        loss_and_accuracy(case.task, case.w, subject.everything), columns, arrays, subject.everything.samples()
    )


def measure_discrepancy(case: ModelToMeasure) -> Measurement:
    """Δ_F over all clients (or those of --clients) and the terms of its bound."""
    subject, settings = case.subject, case.settings
    clients = subject.clients(case.trial, range(len(subject.parts)))
    sizes = [len(subject.parts[client]) for client in clients]
    ends, own = subject.ends(case.trial, clients), [subject.own(client) for client in clients]
    found = flatness_discrepancy(
        case.task, case.w, ends, own, sizes, settings.rho, settings.ascent_steps, settings.seed
    )
    columns = {"client": clients, "samples": sizes, "rise": found.local_rises, "distance": found.distances}
    numbers = {k: v for k, v in found._asdict().items() if k not in ("value", "local_rises", "distances")}
    everyone = join_objectives(own, sizes)
    numbers = {**loss_and_accuracy(case.task, case.w, everyone), "discrepancy": found.value, **numbers}
    return Measurement(numbers, columns, samples=everyone.samples())


def measure_barrier(case: ModelToMeasure, other: Tensor) -> Measurement:
    """The loss on the straight line through this model (γ = 1) and another (γ = 0)."""
    line = loss_between(case.task, case.w, other, case.settings.grid - 1, case.data)
    numbers = {"barrier": loss_barrier(line), "distance": float(norm(case.w - other))}
    return Measurement(numbers, {"gamma": line.at, "loss": line.loss})


MEASURES: dict[str, Callable[[ModelToMeasure], Measurement]] = {
    "hessian": measure_hessian,
    "landscape": measure_landscape,
    "lpf": measure_low_pass,
    "discrepancy": measure_discrepancy,
    "path": measure_path,
    "spectrum": measure_spectrum,
    "local": measure_local,
    "local-landscape": measure_local_landscape,
}
