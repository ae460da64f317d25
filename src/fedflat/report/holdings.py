"""Who holds what: the clients x classes picture of the runs' partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedflat.data.partition import class_counts, describe_partition
from fedflat.errors import UserError
from fedflat.report.charts import Axis, Grid, Grids
from fedflat.report.settings import meaning
from fedflat.runs.build import load_run_dataset, partition_clients
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.read import StoredRun

SHOWN = 200  # clients; more would be thinner than a pixel


KEYS = ("dataset", "partition", "clients", "alpha", "shards", "partition_seed", "validation")


def holdings(runs: Sequence[StoredRun]) -> tuple[list[Grids], list[str]]:
    """One figure with a picture for each partition that the runs used, and why others are missing."""
    settings = {tuple(run.config.get(key) for key in KEYS): run for run in runs}
    grids, problems = [], []
    for run in settings.values():
        try:
            grids.append(_grid(run.config))
        except (UserError, OSError, ValueError) as error:
            problems.append(f"{run.name}: clients and classes are not shown ({error})")
    return ([_chart(grids)] if grids else []), problems


def _grid(config: dict[str, Any]) -> Grid:
    """Samples of each class (upwards) that each client (across) holds."""
    setting = experiment_from_dict({key: config[key] for key in KEYS if key in config}, "config.yaml")
    setting.check()
    setting.check_named()
    data = load_run_dataset(setting)
    held = class_counts(data.y.numpy(), partition_clients(setting, data), data.classes)
    cut = f", first {SHOWN} of {len(held)} clients" if len(held) > SHOWN else ""
    partition = meaning(data).partition if setting.partition == "auto" else setting.partition
    held_out = f", validation {setting.validation:g}" if setting.validation else ""
    name = f"{data.name}, {describe_partition(partition, setting.alpha, setting.shards)}{held_out}{cut}"
    few = held[:SHOWN].T
    return Grid(name, [*range(few.shape[1])], [*range(len(few))], [[n or None for n in row] for row in few.tolist()])


def _chart(grids: list[Grid]) -> Grids:
    caption = (
        "Each column is a client, each row a class; the stronger the colour, the more training samples of that class "
        "the client holds. Empty cells are classes it never sees: the more of them, the more clients differ."
    )
    most = max(n for grid in grids for row in grid.z for n in row if n is not None)
    axes = Axis("client"), Axis("class"), Axis("samples")
    return Grids("clients", "Which client holds which classes", caption, *axes, grids, 0.0, float(most))
