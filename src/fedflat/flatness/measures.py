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
    loss_on_plane,
    loss_surface,
    random_directions,
)
from fedflat.flatness.objective import join_objectives, loss_and_accuracy, loss_and_gradient, mean_loss
from fedflat.flatness.sharpness import flatness_discrepancy, local_and_global_curvature, low_pass_loss
from fedflat.flatness.trajectory import (
    PrincipalPlane,
    RecordedRound,
    axes_around,
    clients_in_plane,
    principal_plane,
    replay_rounds,
    server_path,
    share_in_plane,
    spread_rounds,
)
from fedflat.methods.running_averages import with_server_statistics


class Measurement(NamedTuple):
    """The result of one measurement of one model.

    Args:
        numbers: single numbers by name.
        columns: columns of the CSV file, all of equal length.
        arrays: arrays of the JSON file, where they are not the columns.
        samples: the number of samples measured on, where it is not that of the run's `data`.
    """

    numbers: dict[str, Any]
    columns: dict[str, Any]
    arrays: dict[str, Any] | None = None
    samples: int | None = None


class ModelToMeasure:
    """The final model of one seed of a run.

    Args:
        run: the run.
        trial: the seed's final state.
        alike: the parameters of all models that share random directions with this one, itself included.
    """

    def __init__(self, run: FinishedRun, trial: Trial, alike: Sequence[Tensor]) -> None:
        self.run, self.trial, self.alike = run, trial, alike
        self.task, self.w = with_server_statistics(run.task, trial.server), trial.server.params
        self.settings = run.settings
        self.data = run.data._replace(label=f"{run.name} seed {trial.seed}")
        self.hessian = Hessian(self.task, self.w, self.data)

    @cached_property
    def eigenpairs(self) -> Eigenpairs:
        """The largest eigenvalues, computed once for the table and for the axes of landscapes."""
        solve = largest_eigenpairs if self.settings.solver == "lanczos" else power_iteration
        return solve(self.hessian, max(self.settings.top, 2), seed=self.settings.seed)

    @cached_property
    def directions(self) -> Tensor:
        """The two axes of landscapes, [2, P]."""
        if self.settings.directions == "eigen":
            return self.eigenpairs.vectors[:2]
        return random_directions(self.task, self.alike, self.settings.seed)


def measure_hessian(model: ModelToMeasure) -> Measurement:
    """Measure λ1, …, λk, λ1/λ5 and the trace of the Hessian."""
    values = model.eigenpairs.values[: model.settings.top].tolist()
    trace = hessian_trace(model.hessian, model.settings.probes, model.settings.seed)
    numbers = {"lambda1": values[0], "lambda1_over_lambda5": model.eigenpairs.ratio()}
    numbers |= {"trace": trace.value, "trace_error": trace.error}
    return Measurement(numbers, {"number": [*range(1, len(values) + 1)], "eigenvalue": values})


def measure_spectrum(model: ModelToMeasure) -> Measurement:
    """Measure the density of the eigenvalues."""
    spectrum = spectral_density(model.hessian, model.settings.probes, seed=model.settings.seed)
    nodes, weights = spectrum.nodes, spectrum.weights
    grid, density = spectrum.density()
    columns = {"eigenvalue": grid, "density": density}
    numbers = {"smallest": float(nodes.min()), "largest": float(nodes.max()), "trace": spectrum.trace.value}
    return Measurement(numbers, columns, {**columns, "nodes": nodes, "weights": weights})


def measure_low_pass(model: ModelToMeasure) -> Measurement:
    """Measure the mean loss under Gaussian noise."""
    settings = model.settings
    filtered = low_pass_loss(model.task, model.w, model.data, settings.sigma, settings.draws, settings.seed)
    numbers = {"lpf": filtered.value, "lpf_error": filtered.error, "rise": filtered.value - filtered.loss}
    return Measurement(numbers, {"pair": [*range(len(filtered.pairs))], "loss": filtered.pairs})


def measure_path(model: ModelToMeasure) -> Measurement:
    """Measure the loss along the gradient, and its mean and deviation along ten random filter-normalised directions."""
    task, w, settings = model.task, model.w, model.settings
    gradient = loss_and_gradient(task, w, model.data)[1]
    random = random_directions(task, model.alike, settings.seed, 10)
    lines = [loss_along(task, w, d, settings.extent, settings.grid, model.data) for d in [unit(gradient), *random]]
    around = torch.stack([line.loss for line in lines[1:]])
    columns = {"distance": lines[0].at, "along_gradient": lines[0].loss}
    columns |= {"along_random": around.mean(0), "along_random_std": around.std(0)}
    return Measurement({"gradient_norm": float(norm(gradient))}, columns)


def measure_landscape(model: ModelToMeasure) -> Measurement:
    """Measure the loss on a square around the model."""
    settings = model.settings
    surface = loss_surface(model.task, model.w, model.directions, settings.extent, settings.grid, model.data)
    x, y = _grid_points(surface)
    columns = {"x": x, "y": y, "loss": surface.loss.flatten()}
    return Measurement({"highest": float(surface.loss.max())}, columns, surface._asdict())


def _grid_points(surface: LossSurface) -> tuple[Tensor, Tensor]:
    """Return x and y of every point of a surface, row by row."""
    return surface.x.repeat(len(surface.y)), surface.y.repeat_interleave(len(surface.x))


def measure_local(model: ModelToMeasure) -> Measurement:
    """Measure λ1 of clients' models on their own and on all training samples."""
    run = model.run
    clients = run.chosen_clients(model.trial)
    local_models = run.next_local_models(model.trial, clients)
    local_data = [run.local_data(client) for client in clients]
    pairs = local_and_global_curvature(model.task, local_models, local_data, run.train_data, model.settings.seed)
    columns: dict[str, list[float]] = {"client": [*clients], "samples": [len(run.client_rows[c]) for c in clients]}
    columns |= {"lambda_local": [pair.own for pair in pairs], "lambda_global": [pair.all for pair in pairs]}
    means = {f"mean_{name}": sum(columns[name]) / len(clients) for name in ("lambda_local", "lambda_global")}
    numbers = loss_and_accuracy(model.task, model.w, run.train_data) | means
    return Measurement(numbers, columns, samples=run.train_data.sample_count())


def measure_local_landscape(model: ModelToMeasure) -> Measurement:
    """Measure the loss around clients' models on their own and on all training samples, on the same axes."""
    run, settings = model.run, model.settings
    clients = run.chosen_clients(model.trial)
    surfaces: list[dict[str, Any]] = []
    for client, w_i in zip(clients, run.next_local_models(model.trial, clients), strict=True):
        own, everyone = (
            loss_surface(model.task, w_i, model.directions, settings.extent, settings.grid, data)
            for data in (run.local_data(client), run.train_data)
        )
        surfaces.append({"client": client, "own": own.loss, "all": everyone.loss})
    x, y = _grid_points(own)
    columns = {"client": [client for client in clients for _ in x], "x": x.repeat(len(clients))}
    columns |= {"y": y.repeat(len(clients))}
    columns |= {name: torch.cat([s[name].flatten() for s in surfaces]) for name in ("own", "all")}
    arrays = {"x": own.x, "y": own.y, "surfaces": surfaces}
    numbers = loss_and_accuracy(model.task, model.w, run.train_data)
    return Measurement(numbers, columns, arrays, run.train_data.sample_count())


def measure_discrepancy(model: ModelToMeasure) -> Measurement:
    """Measure Δ_F over all clients (or those of the setting `clients`) and the terms of its bound."""
    run, settings = model.run, model.settings
    clients = run.chosen_clients(model.trial, range(len(run.client_rows)))
    sizes = [len(run.client_rows[client]) for client in clients]
    local_models = run.next_local_models(model.trial, clients)
    local_data = [run.local_data(client) for client in clients]
    terms = flatness_discrepancy(
        model.task, model.w, local_models, local_data, sizes, settings.rho, settings.ascent_steps, settings.seed
    )
    columns = {"client": clients, "samples": sizes, "rise": terms.local_rises, "distance": terms.distances}
    numbers = {k: v for k, v in terms._asdict().items() if k not in ("value", "local_rises", "distances")}
    all_data = join_objectives(local_data, sizes)
    numbers = {**loss_and_accuracy(model.task, model.w, all_data), "discrepancy": terms.value, **numbers}
    return Measurement(numbers, columns, samples=all_data.sample_count())


def measure_trajectories(models: Sequence[ModelToMeasure]) -> list[Measurement]:
    """Measure where servers and clients went in training, and the loss on the plane that shows most of all their paths.

    Args:
        models: of one model its own plane is taken; several must have the same architecture.
    """
    replays = [_replay(model) for model in models]
    plane = principal_plane(*map(server_path, replays))
    seen = [torch.cat([server_path(each), *(round.ends for round in each)]) for each in replays]
    x, y = axes_around(torch.cat([*map(plane.project, seen)]), models[0].settings.grid)
    return [_trajectory(model, recorded, plane, x, y) for model, recorded in zip(models, replays, strict=True)]


def _replay(model: ModelToMeasure) -> list[RecordedRound]:
    trained = model.run.trained
    rounds = spread_rounds(trained.rounds, model.settings.trajectory_rounds)
    return replay_rounds(trained, model.trial.seed, rounds, model.data.label)


def _trajectory(
    model: ModelToMeasure, recorded: Sequence[RecordedRound], plane: PrincipalPlane, x: Tensor, y: Tensor
) -> Measurement:
    """Return a run's path on a plane, and the loss at the places x, y of the plane."""
    w, path = model.w, server_path(recorded)
    server, clients = plane.project(path), clients_in_plane(plane, recorded)
    ends = torch.cat([plane.project(each.ends) for each in recorded])
    origin, directions = plane.origin.to(w), plane.directions.to(w)
    surface = loss_on_plane(model.task, origin, directions, x, y, model.data, "trajectory")
    numbers = {"explained_1": float(plane.explained[0]), "explained_2": float(plane.explained[1])}
    numbers |= {"client_share": share_in_plane(plane, recorded)}
    numbers |= {"replay_distance": float(norm(path[-1] - w.cpu()) / norm(path[-1] - path[0]))}
    losses = [float(mean_loss(model.task, point.to(w), model.data)) for point in path]
    arrays: dict[str, Any] = {"round": [0, *(each.round for each in recorded)]}
    arrays |= {"server_x": server[:, 0], "server_y": server[:, 1], "server_loss": losses, "clients": clients}
    everyone: list[tuple[int, int | None]] = [(number, None) for number in arrays["round"]]
    everyone += [(each["round"], client) for each in clients for client in each["client"]]
    names = ("round", "client", "x", "y")
    columns = dict(zip(names, [*zip(*everyone, strict=True), *torch.cat([server, ends]).T], strict=True))
    return Measurement(numbers, columns, surface._asdict() | arrays)


def measure_barrier(model: ModelToMeasure, other: Tensor) -> Measurement:
    """Measure the loss on the straight line through this model (γ = 1) and `other` [P] (γ = 0)."""
    line = loss_between(model.task, model.w, other, model.settings.grid - 1, model.data)
    numbers = {"barrier": loss_barrier(line), "distance": float(norm(model.w - other))}
    return Measurement(numbers, {"gamma": line.at, "loss": line.loss})


MEASUREMENTS: dict[str, Callable[[ModelToMeasure], Measurement]] = {  # all but the barrier, which needs two models
    "hessian": measure_hessian,
    "landscape": measure_landscape,
    "lpf": measure_low_pass,
    "discrepancy": measure_discrepancy,
    "path": measure_path,
    "spectrum": measure_spectrum,
    "local": measure_local,
    "local-landscape": measure_local_landscape,
    "trajectory": lambda model: measure_trajectories([model])[0],
}
