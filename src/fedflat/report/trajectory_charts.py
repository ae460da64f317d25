"""The chart of trajectories: where server and clients went in training, on the loss surface that shows most of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedflat.report.charts import Axis, Grid, Grids, Trajectory
from fedflat.report.comparison import AnalysisDocuments
from fedflat.report.flatness_charts import LOSS_AXIS, MeasuredRun, loss_scale, measured_runs
from fedflat.runs.read import StoredRun


def trajectory_chart(runs: Sequence[StoredRun], documents: Sequence[AnalysisDocuments]) -> Iterator[Grids]:
    """Yield the chart of the trajectories, if a run has one.

    Args:
        runs: the runs that are shown together.
        documents: their analyses.
    """
    if measured := measured_runs(runs, documents, "trajectory"):
        yield _trajectories(measured)


def _trajectories(runs: Sequence[MeasuredRun]) -> Grids:
    grids = _on_shared_planes([_trajectory_grid(run) for run in runs])
    shares = [run.first_seed()[1]["client_share"] for run in runs]
    low, high = _path_scale(grids)
    caption = (
        f"{_plane_text(grids)}: the first two principal components (PC) of these models, with the share of their "
        "variance along each. A line is a server's path from its initial model up to the chosen round, the cross its "
        "final model. Thin lines lead from the model before that round to its clients' models after local training. "
        f"The plane shows {_range_text(shares)} of the clients' way (squared length); the rest lies outside of it. "
        f"Losses above {high:.3g} are cut off."
    )
    axes = Axis("PC 1"), Axis("PC 2"), LOSS_AXIS
    title = "Trajectories of server and clients"
    return Grids("trajectory", title, f"{caption}{_replay_text(runs)}", *axes, grids, low, high, relief=True)


def _plane_text(grids: Sequence[Grid]) -> str:
    if all(len(grid.trajectories) == 1 for grid in grids):
        return "The loss on the plane through each final model that shows most of the server's path"
    return "The loss on the plane that shows most of the servers' paths, through their mean"


def _on_shared_planes(grids: Sequence[Grid]) -> list[Grid]:
    """Return one panel for all paths on the same surface."""
    panels: list[Grid] = []
    for grid in grids:
        same = next((n for n, panel in enumerate(panels) if _same_surface(panel, grid)), None)
        if same is None:
            panels.append(grid)
        else:
            paths = [*panels[same].trajectories, *grid.trajectories]
            seed = grid.name.rpartition(", ")[2]
            panels[same] = replace(panels[same], name=f"{len(paths)} runs, {seed}", run=None, trajectories=paths)
    return panels


def _same_surface(one: Grid, other: Grid) -> bool:
    here, there = (np.array(grid.z, dtype=float) for grid in (one, other))
    return (one.x, one.y) == (other.x, other.y) and np.allclose(here, there, rtol=1e-3, equal_nan=True)


def _trajectory_grid(run: MeasuredRun) -> Grid:
    seed, found = run.first_seed()
    server = [*zip(found["server_x"], found["server_y"], strict=True)]
    starts = [server[0], *((each["start_x"], each["start_y"]) for each in found["clients"])]
    clients = [[], *([*zip(each["x"], each["y"], strict=True)] for each in found["clients"])]
    x_label, y_label = (f"PC {n} ({100 * found[f'explained_{n}']:.0f} %)" for n in (1, 2))
    path = Trajectory(run.name, run.number, found["round"], server, starts, clients, found["server_loss"])
    name, surface = f"{run.name}, seed {seed}", (found["x"], found["y"], found["loss"])
    return Grid(name, *surface, run.number, x_label=x_label, y_label=y_label, trajectories=[path])


def _path_scale(grids: Sequence[Grid]) -> tuple[float, float]:
    """Return the ends of a scale on which paths are seen: the highest loss of any server is at three quarters of it.

    Corners of a plane may be far steeper than what the servers passed.
    """
    low, highest = loss_scale(grids)
    losses = [loss for grid in grids for path in grid.trajectories for loss in path.losses if loss is not None]
    top = max([low, *losses])
    return low, min(highest, max(low + (top - low) / 0.75, low + max(1e-6 * abs(low), 1e-9)))


def _range_text(shares: Sequence[float]) -> str:
    """Return "12 %", or "12 to 30 %" of several shares."""
    low, high = (f"{100 * share:.2g}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _replay_text(runs: Sequence[MeasuredRun]) -> str:
    """Say of which runs the replay did not end at the stored model, as on another device than the run's."""
    far = {run.name: run.first_seed()[1]["replay_distance"] for run in runs}
    parts = [f"{name} by {distance:.0%} of its way" for name, distance in far.items() if distance > 0.01]
    return f" The replay ended away from the stored model: {', '.join(parts)}." if parts else ""
