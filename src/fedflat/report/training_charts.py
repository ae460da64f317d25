"""Charts of training: learning curves, communication, the partition, and what probes measured."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedflat.core.metric import SHARES, MainMetric, common_metric
from fedflat.core.tasks import TASKS
from fedflat.data.dataset import default_partition
from fedflat.data.partition import class_counts, describe_partition
from fedflat.errors import UserError
from fedflat.probes import PROBES
from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, mean_line
from fedflat.report.client_charts import CLIENT_PROBES
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
JOINT_PROBES = {"drift": Axis("distance"), "forgetting": Axis("accuracy", "percent")}  # all their measures in one chart
LIST_ELEMENTS = {
    "classes": "class",
    "clients": "client",
    "lambda": "parameter tensor",
}  # what the elements of a probe's list belong to
ACCURACY_LISTS = {"classes.accuracy": "Accuracy of each class", "clients.accuracy": "Accuracy of each client"}
HOW_TO_READ = {  # second sentence of a probe's caption
    "drift": "The higher a line, the further clients with different data have moved apart within the round.",
    "forgetting": "The gap between a run's lines before and after is what training on clients' own data has undone.",
    "sharpness": "A line that falls moves to flatter regions.",
    "alignment": "Near 0 the clients' updates are orthogonal, below 0 they undo each other.",
    "classes": "Faint cells are classes that the global model does not know in that round.",
}


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


def probe_charts(runs: Sequence[StoredRun]) -> Iterator[Chart]:
    """Yield the charts of every probe that any of the runs has, sorted by the probe's name.

    Numbers become curves, lists become heat maps. Standard deviations over clients (keys that end in _std) are not
    shown, nor numbers that were measured once: these are in a table.
    """
    once = single_probe_values(runs)
    keys = [key for key in _probe_keys(runs) if key not in once and _probe_name(key) not in CLIENT_PROBES]
    for probe, group in itertools.groupby(keys, _probe_name):
        of_probe = list(group)
        for together in [of_probe] if probe in JOINT_PROBES else [[key] for key in of_probe]:
            yield from _probe_curves(runs, probe, together)
        yield from (chart for key in of_probe for chart in _probe_heat_map(runs, probe, key))


def single_probe_values(runs: Sequence[StoredRun]) -> list[str]:
    """Return the keys of probes' numbers that no run has in more than one round: a table shows them, not a chart."""
    rounds = {key: [len({round for round, _ in number_points(run, key)}) for run in runs] for key in _probe_keys(runs)}
    return [key for key, counts in rounds.items() if max(counts) == 1]


def _probe_keys(runs: Sequence[StoredRun]) -> list[str]:
    """Return the keys PROBE.MEASURE of all runs, sorted by probe; a probe's measures stay in their order."""
    keys = dict.fromkeys(key for run in runs for row in run.rows for key in row.get("probes", {}))
    return sorted((key for key in keys if not key.endswith("_std")), key=_probe_name)


def _probe_name(key: str) -> str:
    return key.partition(".")[0]


def _measure_name(key: str) -> str:
    return key.partition(".")[2].replace("_", " ") or key


def _chart_key(name: str) -> str:
    """Return a key that is safe in HTML and as a file name, whatever characters a probe's name has."""
    return "probe-" + re.sub(r"[^\w-]+", "-", name)


def probe_caption(runs: Sequence[StoredRun], key: str) -> str:
    """Return the first line of the probe's docstring and how to read its chart.

    Args:
        runs: the runs, which may be evaluated on validation instead of test data.
        key: PROBE or PROBE.MEASURE.
    """
    probe = _probe_name(key)
    text = (inspect.getdoc(PROBES[probe]) or "").partition("\n")[0] if probe in PROBES else "Measured while training."
    return f"{text.replace('test data', f'{evaluated_on(runs)} data')} {HOW_TO_READ.get(probe, '')}".strip()


def _points(run: StoredRun, key: str, kind: Any) -> list[tuple[int, Any]]:
    """Return (round, value) of every row whose value is of type `kind`."""
    values = ((row["round"], row.get("probes", {}).get(key)) for row in run.rows)
    return [(round, value) for round, value in values if isinstance(value, kind)]


def number_points(run: StoredRun, key: str) -> list[tuple[int, float]]:
    """Return (round, value) of every row in which the probe's value `key` is a number."""
    return _points(run, key, int | float)


def measure_title(key: str) -> str:
    """Return a probe's key as a title: "drift, global local" for drift.global_local."""
    return key.replace(".", ", ").replace("_", " ")


def _probe_curves(runs: Sequence[StoredRun], probe: str, keys: Sequence[str]) -> Iterator[Curves]:
    """Yield one chart of these measures over the rounds, if they are numbers."""
    lines = [line for variant, key in enumerate(keys) for line in _probe_lines(runs, key, variant, len(keys))]
    if lines:
        joint = probe in JOINT_PROBES
        form: Any = "bytes" if keys[0].endswith(".bytes") else "number"
        name, y = (probe, JOINT_PROBES[probe]) if joint else (keys[0], Axis(_measure_name(keys[0]), form))
        title, caption = f"Probe: {measure_title(name)}", probe_caption(runs, probe)
        yield Curves(_chart_key(name), title, caption, ROUND_AXIS, y, lines, smooth=True)


def _probe_lines(runs: Sequence[StoredRun], key: str, variant: int, variants: int) -> Iterator[ChartLine]:
    for number, run in enumerate(runs):
        points = number_points(run, key)
        if points:
            name = f"{run.name}, {_measure_name(key)}" if variants > 1 else run.name
            marks = len({round for round, _ in points}) == 1
            yield mean_line(name, number, points, variant, marks)


def _probe_heat_map(runs: Sequence[StoredRun], probe: str, key: str) -> Iterator[Grids]:
    """Yield one chart of a measure that is a list: rounds horizontally, elements vertically, mean over seeds."""
    points = [_points(run, key, list) for run in runs]
    grids = [grid for n, run in enumerate(runs) if (grid := _probe_grid(run.name, n, points[n])).x]
    values = [z for grid in grids for row in grid.z for z in row if z is not None]
    if values:
        is_accuracy = key in ACCURACY_LISTS
        z = Axis(_measure_name(key), "percent" if is_accuracy else "number")
        scale = (0.0, 1.0) if is_accuracy else (min(values), max(values))
        title = ACCURACY_LISTS.get(key, f"Probe: {measure_title(key)}")
        axes = ROUND_AXIS, Axis(LIST_ELEMENTS.get(probe, "number")), z
        yield Grids(_chart_key(key), title, probe_caption(runs, probe), *axes, grids, *scale)


def _probe_grid(name: str, run: int, points: Iterable[tuple[int, Sequence[float | None]]]) -> Grid:
    """Return a panel whose z[i][j] is the mean over seeds of element i in the j-th round that has any."""
    elements: dict[int, list[tuple[float, float]]] = {}  # index in the list: (round, value) of all seeds
    for round, values in points:
        for i, value in enumerate(values):
            elements.setdefault(i, []).extend([] if value is None else [(round, value)])
    lines = [mean_line(name, run, pairs) for pairs in elements.values()]
    means = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({x for line in lines for x in line.x})
    return Grid(name, rounds, [*map(float, elements)], [[mean.get(x) for x in rounds] for mean in means], run)
