"""What probes measured while the runs were training: curves of numbers, heat maps of lists."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedflat.probes import PROBES
from fedflat.report.charts import Axis, Chart, Curves, Grid, Grids, Line, band
from fedflat.report.curves import ROUND
from fedflat.runs.read import StoredRun, evaluated_on

READING = {
    "drift": "The higher a line, the further clients with different data have moved apart within the round.",
    "forgetting": "The gap between a run's lines before and after is what training on clients' own data has undone.",
    "classes": "Faint cells are classes that the global model does not know in that round.",
}


TOGETHER = {"drift": Axis("distance"), "forgetting": Axis("accuracy", "percent")}  # measures that share a figure


LISTED = {"classes": "class", "lambda": "parameter tensor"}  # what the places of a list stand for


def probed(runs: Sequence[StoredRun]) -> Iterator[Chart]:
    """Figures of every probe that any of the runs has, by name; spreads over clients stay in metrics.jsonl."""
    once = measured_once(runs)
    for probe, found in itertools.groupby([key for key in _keys(runs) if key not in once], _probe):
        measures = list(found)
        for group in [measures] if probe in TOGETHER else [[key] for key in measures]:
            yield from _curves(runs, probe, group)
        yield from (chart for key in measures for chart in _heat(runs, probe, key))


def measured_once(runs: Sequence[StoredRun]) -> list[str]:
    """The numbers that no run has of more than one round, and some run has: a table shows them, not a figure."""
    rounds = {key: [len({round for round, _ in numbers(run, key)}) for run in runs] for key in _keys(runs)}
    return [key for key, counts in rounds.items() if max(counts) == 1]


def _keys(runs: Sequence[StoredRun]) -> list[str]:
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


def about(runs: Sequence[StoredRun], key: str) -> str:
    """The first sentence of the probe's description, and how to read the figure."""
    probe = _probe(key)
    text = (inspect.getdoc(PROBES[probe]) or "").partition("\n")[0] if probe in PROBES else "Measured while training."
    return f"{text.replace('test data', f'{evaluated_on(runs)} data')} {READING.get(probe, '')}".strip()


def _values(run: StoredRun, key: str, kind: Any) -> list[tuple[int, Any]]:
    """(round, value) of every row whose value is of this kind."""
    found = ((row["round"], row.get("probes", {}).get(key)) for row in run.rows)
    return [(round, value) for round, value in found if isinstance(value, kind)]


def numbers(run: StoredRun, key: str) -> list[tuple[int, float]]:
    """(round, value) of every row in which this is a number."""
    return _values(run, key, int | float)


def title(key: str) -> str:
    """A measure in words."""
    return key.replace(".", ", ").replace("_", " ")


def _curves(runs: Sequence[StoredRun], probe: str, keys: Sequence[str]) -> Iterator[Curves]:
    """Measures of all runs over the rounds, where they are numbers."""
    lines = [line for way, key in enumerate(keys) for line in _lines(runs, key, way, len(keys))]
    if lines:
        alone = Axis(_measure(keys[0]), "bytes" if keys[0].endswith(".bytes") else "number")
        y, name = TOGETHER.get(probe, alone), probe if probe in TOGETHER else keys[0]
        yield Curves(_key(name), f"Probe: {title(name)}", about(runs, probe), ROUND, y, lines, smooth=True)


def _lines(runs: Sequence[StoredRun], key: str, way: int, ways: int) -> Iterator[Line]:
    for number, run in enumerate(runs):
        points = numbers(run, key)
        if points:
            name = f"{run.name}, {_measure(key)}" if ways > 1 else run.name
            yield band(name, number, points, way, ways, marks=len({round for round, _ in points}) == 1)


def _heat(runs: Sequence[StoredRun], probe: str, key: str) -> Iterator[Grids]:
    """A measure of all runs, where it is a list: rounds across, the list upwards, mean over seeds."""
    lists = {run.name: _values(run, key, list) for run in runs}
    grids = [grid for name, points in lists.items() if (grid := _grid(name, points)).x]
    values = [z for grid in grids for row in grid.z for z in row if z is not None]
    if values:
        share = key == "classes.accuracy"
        z = Axis(_measure(key), "percent" if share else "number")
        scale = (0.0, 1.0) if share else (min(values), max(values))
        name = "Accuracy of each class" if share else f"Probe: {title(key)}"
        axes = ROUND, Axis(LISTED.get(probe, "number")), z
        yield Grids(_key(key), name, about(runs, probe), *axes, grids, *scale)


def _grid(name: str, points: Iterable[tuple[int, Sequence[float | None]]]) -> Grid:
    """z[i][j]: the mean over seeds of the i-th number in the j-th round that has it."""
    places: dict[int, list[tuple[float, float]]] = {}
    for round, numbers in points:
        for i, number in enumerate(numbers):
            places.setdefault(i, []).extend([] if number is None else [(round, number)])
    lines = [band(name, 0, pairs) for pairs in places.values()]
    means = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({x for line in lines for x in line.x})
    return Grid(name, rounds, [*map(float, places)], [[found.get(x) for x in rounds] for found in means])
