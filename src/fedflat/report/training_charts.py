"""Charts of training: learning curves, communication, and the partition."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedflat.core.metric import SHARES, MainMetric, common_metric
from fedflat.core.tasks import TASKS
from fedflat.data.dataset import default_partition
from fedflat.data.partition import class_counts, describe_partition
from fedflat.errors import UserError
from fedflat.report.charts import Axis, ChartLine, Curves, Grid, Grids, mean_line
from fedflat.runs.build import load_run_dataset, partition_clients
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import DATA_OPTIONS
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import bytes_per_round

ROUND_AXIS = Axis("round", "round")
MAX_CLIENTS_SHOWN = 200  # columns of the partition chart; more would be narrower than a pixel
PARTITION_KEYS = (
    *DATA_OPTIONS,
    "holdout_clients",
    "partition",
    "clients",
    "alpha",
    "shards",
    "long_tail",
    "partition_seed",
    "validation",
)


def learning_charts(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Yield the charts of each main metric and of the loss over the rounds, on the test or validation set."""
    bands = "A line is the mean over seeds, its band one standard deviation to either side. ✖ marks a divergence."
    samples = f"on the {evaluated_on(runs)} set"
    for metric in dict.fromkeys(run.main_metric for run in runs):
        direction = f"{'Higher' if metric.higher_is_better else 'Lower'} is better, and so is earlier."
        title = f"{metric.name.capitalize()} {samples}"
        yield _over_rounds(runs, metric.name, title, f"{bands} {direction}", metric_axis(runs, metric))
    loss = "Lower is better; a line ends where the loss of any seed is not finite (✖)."
    entropy = all(run.main_metric.name == "accuracy" for run in runs)
    yield _over_rounds(runs, "loss", f"Loss {samples}", f"{bands} {loss}", Axis("cross entropy" if entropy else "loss"))


def metric_axis(runs: Sequence[StoredRun], metric: MainMetric) -> Axis:
    """Return the axis of a main metric of these runs."""
    return Axis(f"{evaluated_on(runs)} {metric.name}", "percent" if metric.is_share else "number")


def _over_rounds(runs: Sequence[StoredRun], key: str, title: str, caption: str, y: Axis) -> Curves:
    lines = [run_line(run, number, key) for number, run in enumerate(runs) if key in run.rows[0]]
    return Curves(key, title, caption, ROUND_AXIS, y, lines, smooth=True)


def run_line(run: StoredRun, number: int, key: str) -> ChartLine:
    """Return the mean and band over seeds of a run's metric.

    The line ends before the first round in which a seed has no finite value: the mean of the other seeds would look
    better than the run is.

    Args:
        run: the run.
        number: its number, which gives the colour.
        key: the name of a metric, or "loss".
    """
    end = min((row["round"] for row in run.rows if row["loss"] is None), default=math.inf)
    rows = [row for row in run.rows if row["round"] < end or (key == "accuracy" and row[key] is not None)]
    line = mean_line(run.name, number, [(row["round"], row[key]) for row in rows])
    line = dataclasses.replace(line, seeds=_seed_values(rows, key, line.x), lost=_lost_at(line, end))
    return _clip_band(line) if key in SHARES else line


def _seed_values(rows: Sequence[dict[str, Any]], key: str, rounds: Sequence[float]) -> dict[str, list[float | None]]:
    """Return each seed's values in these rounds; nothing if there is one seed."""
    values: dict[str, dict[float, float]] = {}
    for row in rows:
        values.setdefault(str(row["seed"]), {})[row["round"]] = row[key]
    return {seed: [found.get(round) for round in rounds] for seed, found in values.items()} if len(values) > 1 else {}


def _lost_at(line: ChartLine, end: float) -> tuple[float, float | None] | None:
    """Return where a line leaves the finite numbers, given the first round without a finite loss."""
    if end == math.inf:
        return None
    until = [(x, y) for x, y in zip(line.x, line.y, strict=True) if x <= end]
    return until[-1] if until else (end, None)


def _clip_band(line: ChartLine) -> ChartLine:
    """Cut the line's band to [0, 1]."""
    low, high = ([min(max(edge, 0.0), 1.0) for edge in edges] for edges in (line.low, line.high))
    return dataclasses.replace(line, low=low, high=high)


def communication_chart(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Yield the chart of the main metric against the bytes sent so far, if a run is finished.

    bytes = rounds · (clients asked · bytes down + clients that replied · bytes up), with means per round
    """
    metric = common_metric(run.main_metric for run in runs)
    alike = metric in {run.main_metric for run in runs}
    lines = [_against_bytes(run, number) for number, run in enumerate(runs) if run.result and alike]
    caption = (
        "Bytes sent to and from all clients up to each evaluation, counted on the messages. "
        f"At a given {metric.name}, the line furthest to the left needs the least communication."
    )
    if lines:
        sent = Axis("sent in total", "bytes")
        title = f"What {metric.name} costs"
        yield Curves("communication", title, caption, sent, metric_axis(runs, metric), lines, smooth=True)


def _against_bytes(run: StoredRun, number: int) -> ChartLine:
    assert run.result
    per_round = bytes_per_round(run.result, run.config["cohort"])
    line = run_line(run, number, run.main_metric.name)
    return dataclasses.replace(line, x=[round * per_round for round in line.x], seeds={}, lost=None)


def partition_chart(runs: Sequence[StoredRun]) -> tuple[list[Grids], list[str]]:
    """Return the chart of clients and classes, with one panel for each partition that the runs used.

    The list holds one chart, or none if no partition can be shown. The second list holds a warning for each
    partition that is missing, for example because its data are not on this machine.
    """
    partitions = {str([run.config.get(key) for key in PARTITION_KEYS]): run for run in runs}
    grids, warnings = [], []
    for run in partitions.values():
        try:
            grids += _partition_grid(run.config)
        except (UserError, OSError, ValueError) as error:
            warnings.append(f"{run.name}: clients and classes are not shown ({error})")
    return ([_partition_grids(grids)] if grids else []), warnings


def _partition_grid(config: dict[str, Any]) -> list[Grid]:
    """Count the samples of each class (row) that each client (column) holds; [] for data without classes."""
    known = {key: config[key] for key in PARTITION_KEYS if key in config}
    setting = experiment_from_dict({key: v for key, v in known.items() if key != "task" or v in TASKS})
    setting.check()
    setting.check_named()
    data = load_run_dataset(setting)
    if data.task != "classification":
        return []
    counts = class_counts(data.y.numpy(), partition_clients(setting, data), data.classes)
    cut = f", first {MAX_CLIENTS_SHOWN} of {len(counts)} clients" if len(counts) > MAX_CLIENTS_SHOWN else ""
    partition = default_partition(data) if setting.partition == "auto" else setting.partition
    held_out = f", validation {setting.validation:g}" if setting.validation else ""
    name = f"{data.name}, {describe_partition(partition, setting.alpha, setting.shards)}{held_out}{cut}"
    z = counts[:MAX_CLIENTS_SHOWN].T
    return [Grid(name, [*range(z.shape[1])], [*range(len(z))], [[n or None for n in row] for row in z.tolist()])]


def _partition_grids(grids: list[Grid]) -> Grids:
    caption = (
        "Each column is a client, each row a class; the stronger the colour, the more training samples of that class "
        "the client holds. Empty cells are classes it never sees: the more of them, the more clients differ."
    )
    most = max(n for grid in grids for row in grid.z for n in row if n is not None)
    axes = Axis("client"), Axis("class"), Axis("samples")
    return Grids("clients", "Which client holds which classes", caption, *axes, grids, 0.0, float(most))
