"""Charts of training: the partition, learning curves, communication, and what probes measured."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedflat.data.partition import class_counts, describe_partition
from fedflat.errors import UserError
from fedflat.probes import PROBES
from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, band
from fedflat.report.comparison import auto_meaning
from fedflat.runs.build import load_run_dataset, partition_clients
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.read import StoredRun, evaluated_on

MAX_PARTITIONS = 200  # clients; more would be thinner than a pixel


PARTITION_KEYS = ("dataset", "partition", "clients", "alpha", "shards", "partition_seed", "validation")


def partition_chart(runs: Sequence[StoredRun]) -> tuple[list[Grids], list[str]]:
    """One figure with a picture for each partition that the runs used, and why others are missing."""
    settings = {tuple(run.config.get(key) for key in PARTITION_KEYS): run for run in runs}
    grids, problems = [], []
    for run in settings.values():
        try:
            grids.append(_partition_grid(run.config))
        except (UserError, OSError, ValueError) as error:
            problems.append(f"{run.name}: clients and classes are not shown ({error})")
    return ([_partition_panels(grids)] if grids else []), problems


def _partition_grid(config: dict[str, Any]) -> Grid:
    """Samples of each class (upwards) that each client (across) holds."""
    setting = experiment_from_dict({key: config[key] for key in PARTITION_KEYS if key in config}, "config.yaml")
    setting.check()
    setting.check_named()
    data = load_run_dataset(setting)
    held = class_counts(data.y.numpy(), partition_clients(setting, data), data.classes)
    cut = f", first {MAX_PARTITIONS} of {len(held)} clients" if len(held) > MAX_PARTITIONS else ""
    partition = auto_meaning(data).partition if setting.partition == "auto" else setting.partition
    held_out = f", validation {setting.validation:g}" if setting.validation else ""
    name = f"{data.name}, {describe_partition(partition, setting.alpha, setting.shards)}{held_out}{cut}"
    few = held[:MAX_PARTITIONS].T
    return Grid(name, [*range(few.shape[1])], [*range(len(few))], [[n or None for n in row] for row in few.tolist()])


def _partition_panels(grids: list[Grid]) -> Grids:
    caption = (
        "Each column is a client, each row a class; the stronger the colour, the more training samples of that class "
        "the client holds. Empty cells are classes it never sees: the more of them, the more clients differ."
    )
    most = max(n for grid in grids for row in grid.z for n in row if n is not None)
    axes = Axis("client"), Axis("class"), Axis("samples")
    return Grids("clients", "Which client holds which classes", caption, *axes, grids, 0.0, float(most))


READING = {
    "drift": "The higher a line, the further clients with different data have moved apart within the round.",
    "forgetting": "The gap between a run's lines before and after is what training on clients' own data has undone.",
    "classes": "Faint cells are classes that the global model does not know in that round.",
}


TOGETHER = {"drift": Axis("distance"), "forgetting": Axis("accuracy", "percent")}  # measures that share a figure


LISTED = {"classes": "class", "lambda": "parameter tensor"}  # what the places of a list stand for


def probe_charts(runs: Sequence[StoredRun]) -> Iterator[Chart]:
    """Figures of every probe that any of the runs has, by name; spreads over clients stay in metrics.jsonl."""
    once = single_probe_values(runs)
    for probe, found in itertools.groupby([key for key in _measures_by_probe(runs) if key not in once], _probe):
        measures = list(found)
        for group in [measures] if probe in TOGETHER else [[key] for key in measures]:
            yield from _probe_curves(runs, probe, group)
        yield from (chart for key in measures for chart in _probe_heat_map(runs, probe, key))


def single_probe_values(runs: Sequence[StoredRun]) -> list[str]:
    """The numbers that no run has of more than one round, and some run has: a table shows them, not a figure."""
    rounds = {
        key: [len({round for round, _ in number_points(run, key)}) for run in runs] for key in _measures_by_probe(runs)
    }
    return [key for key, counts in rounds.items() if max(counts) == 1]


def _measures_by_probe(runs: Sequence[StoredRun]) -> list[str]:
    """What the probes of all runs measured, by probe; measures stay in their order."""
    known = dict.fromkeys(key for run in runs for row in run.rows for key in row.get("probes", {}))
    return sorted((key for key in known if not key.endswith("_std")), key=_probe)


def _probe(key: str) -> str:
    return key.partition(".")[0]


def _measure(key: str) -> str:
    return key.partition(".")[2].replace("_", " ") or key


def _key(name: str) -> str:
    """A name for elements and files, whatever the metrics hold."""
    return "probe-" + re.sub(r"[^\w-]+", "-", name)


def probe_caption(runs: Sequence[StoredRun], key: str) -> str:
    """The first sentence of the probe's description, and how to read the figure."""
    probe = _probe(key)
    text = (inspect.getdoc(PROBES[probe]) or "").partition("\n")[0] if probe in PROBES else "Measured while training."
    return f"{text.replace('test data', f'{evaluated_on(runs)} data')} {READING.get(probe, '')}".strip()


def _values(run: StoredRun, key: str, kind: Any) -> list[tuple[int, Any]]:
    """(round, value) of every row whose value is of this kind."""
    found = ((row["round"], row.get("probes", {}).get(key)) for row in run.rows)
    return [(round, value) for round, value in found if isinstance(value, kind)]


def number_points(run: StoredRun, key: str) -> list[tuple[int, float]]:
    """(round, value) of every row in which this is a number."""
    return _values(run, key, int | float)


def measure_title(key: str) -> str:
    """A measure in words."""
    return key.replace(".", ", ").replace("_", " ")


def _probe_curves(runs: Sequence[StoredRun], probe: str, keys: Sequence[str]) -> Iterator[Curves]:
    """Measures of all runs over the rounds, where they are numbers."""
    lines = [line for way, key in enumerate(keys) for line in _probe_lines(runs, key, way, len(keys))]
    if lines:
        alone = Axis(_measure(keys[0]), "bytes" if keys[0].endswith(".bytes") else "number")
        y, name = TOGETHER.get(probe, alone), probe if probe in TOGETHER else keys[0]
        yield Curves(
            _key(name), f"Probe: {measure_title(name)}", probe_caption(runs, probe), ROUND, y, lines, smooth=True
        )


def _probe_lines(runs: Sequence[StoredRun], key: str, way: int, ways: int) -> Iterator[ChartLine]:
    for number, run in enumerate(runs):
        points = number_points(run, key)
        if points:
            name = f"{run.name}, {_measure(key)}" if ways > 1 else run.name
            yield band(name, number, points, way, ways, marks=len({round for round, _ in points}) == 1)


def _probe_heat_map(runs: Sequence[StoredRun], probe: str, key: str) -> Iterator[Grids]:
    """A measure of all runs, where it is a list: rounds across, the list upwards, mean over seeds."""
    lists = {run.name: _values(run, key, list) for run in runs}
    grids = [grid for name, points in lists.items() if (grid := _probe_grid(name, points)).x]
    values = [z for grid in grids for row in grid.z for z in row if z is not None]
    if values:
        share = key == "classes.accuracy"
        z = Axis(_measure(key), "percent" if share else "number")
        scale = (0.0, 1.0) if share else (min(values), max(values))
        name = "Accuracy of each class" if share else f"Probe: {measure_title(key)}"
        axes = ROUND, Axis(LISTED.get(probe, "number")), z
        yield Grids(_key(key), name, probe_caption(runs, probe), *axes, grids, *scale)


def _probe_grid(name: str, points: Iterable[tuple[int, Sequence[float | None]]]) -> Grid:
    """z[i][j]: the mean over seeds of the i-th number in the j-th round that has it."""
    places: dict[int, list[tuple[float, float]]] = {}
    for round, numbers in points:
        for i, number in enumerate(numbers):
            places.setdefault(i, []).extend([] if number is None else [(round, number)])
    lines = [band(name, 0, pairs) for pairs in places.values()]
    means = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({x for line in lines for x in line.x})
    return Grid(name, rounds, [*map(float, places)], [[found.get(x) for x in rounds] for found in means])


ROUND = Axis("round")


def learning_charts(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Accuracy and loss over the rounds, on the test set or on the validation samples."""
    again = "A line is the mean over seeds, its band one standard deviation to either side."
    high, low = (
        "Higher is better, and so is earlier.",
        "Lower is better; a line ends where the loss of any seed is not finite.",
    )
    samples = f"on the {evaluated_on(runs)} set"
    yield _over_rounds(runs, "accuracy", f"Accuracy {samples}", f"{again} {high}", _accuracy(runs))
    yield _over_rounds(runs, "loss", f"Loss {samples}", f"{again} {low}", Axis("cross entropy"))


def _accuracy(runs: Sequence[StoredRun]) -> Axis:
    return Axis(f"{evaluated_on(runs)} accuracy", "percent")


def _over_rounds(runs: Sequence[StoredRun], key: str, title: str, caption: str, y: Axis) -> Curves:
    return Curves(key, title, caption, ROUND, y, [run_line(run, n, key) for n, run in enumerate(runs)], smooth=True)


def run_line(run: StoredRun, number: int, key: str) -> ChartLine:
    """Mean and band over seeds of a run's `key`, in the colour of the number-th run.

    It ends before the first round in which a seed has no finite value: the mean of the others would look better.
    """
    end = min((row["round"] for row in run.rows if row[key] is None), default=math.inf)
    points = [(row["round"], row[key]) for row in run.rows if row["round"] < end]
    found = band(run.name, number, points)
    return _within_one(found) if key == "accuracy" else found


def _within_one(line: ChartLine) -> ChartLine:
    """The line with its band cut to [0, 1]."""
    low, high = ([min(max(edge, 0.0), 1.0) for edge in edges] for edges in (line.low, line.high))
    return dataclasses.replace(line, low=low, high=high)


def communication_chart(runs: Sequence[StoredRun]) -> Iterator[Curves]:
    """Accuracy against everything that was sent so far: cohort x rounds x (bytes down + bytes up)."""
    finished = [_against_bytes(run, number) for number, run in enumerate(runs) if run.result]
    caption = (
        "Bytes sent to and from all clients up to each evaluation, counted on the messages. "
        "At one height, the line furthest to the left is the cheapest way to that accuracy."
    )
    if finished:
        sent = Axis("sent in total", "bytes")
        yield Curves("communication", "What accuracy costs", caption, sent, _accuracy(runs), finished, smooth=True)


def _against_bytes(run: StoredRun, number: int) -> ChartLine:
    assert run.result
    each = run.result.bytes_down_per_client_round + run.result.bytes_up_per_client_round
    found = run_line(run, number, "accuracy")
    return dataclasses.replace(found, x=[r * each * run.config["cohort"] for r in found.x])
