"""Charts of what probes measured while training: numbers as curves, lists as heat maps over the rounds."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedflat.probes import PROBES
from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, mean_line
from fedflat.report.client_charts import CLIENT_PROBES
from fedflat.report.training_charts import ROUND_AXIS
from fedflat.runs.read import StoredRun, evaluated_on

JOINT_PROBES = {"drift": Axis("distance"), "forgetting": Axis("accuracy", "percent")}  # all their measures in one chart
LIST_ELEMENTS = {
    "classes": "class",
    "clients": "client",
    "lambda": "parameter tensor",
}  # what the elements of a probe's list belong to
ACCURACY_LISTS = {"classes.accuracy": "Accuracy of each class", "clients.accuracy": "Accuracy of each client"}
MEASURE_NAMES = {  # of probes, where the key is not a name that readers know
    "lambda1": "λ₁",
    "worst": "worst tenth",
    "spread": "standard deviation",
    "jain": "Jain's index",
    "global_local": "to the global model",
    "local_local": "to each other",
}
HOW_TO_READ = {  # second sentence of a probe's caption
    "drift": "The higher a line, the further clients with different data have moved apart within the round.",
    "forgetting": "The gap between a run's lines before and after is what training on clients' own data has undone.",
    "sharpness": "A line that falls moves to flatter regions.",
    "alignment": "Near 0 the clients' updates are orthogonal, below 0 they undo each other.",
    "classes": "Faint cells are classes that the global model does not know in that round.",
}


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
    measure = key.partition(".")[2]
    return MEASURE_NAMES.get(measure, measure.replace("_", " ")) or key


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
    return f"{_probe_name(key)}, {_measure_name(key)}" if "." in key else key.replace("_", " ")


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
