"""Charts of single clients: how accuracy is spread over them, and which classes each of them forgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from fedflat.core.metric import common_metric
from fedflat.report.charts import Axis, ChartLine, Curves, Grid, Grids, dash_index
from fedflat.runs.read import StoredRun

CLIENT_PROBES = ("class-forgetting",)  # probes whose lists only these charts can show


def client_charts(runs: Sequence[StoredRun]) -> Iterator[Curves | Grids]:
    """Yield the charts of the probes `clients` and `class-forgetting`, if runs have them.

    Args:
        runs: the runs that are shown together.
    """
    metric = common_metric(run.main_metric for run in runs)
    lines = [line for n, run in enumerate(runs) if (line := _sorted_accuracies(run, n))]
    if lines:
        caption = (
            f"The global model's {metric.name} on each client's own training samples in the last round that was "
            "measured, mean over seeds, clients from worst to best. The left tenth are the worst-off clients; the "
            "flatter a line, the fairer the model."
        )
        y = Axis(f"{metric.name} on own samples", "percent" if metric.is_share else "number")
        title = f"{metric.name.capitalize()} of the clients, worst to best"
        yield Curves("client-accuracy", title, caption, Axis("share of clients", "percent"), y, lines)
    grids = [grid for n, run in enumerate(runs) if (grid := _forgetting_grid(run, n))]
    if grids:
        caption = (
            "Accuracy on the test samples of each class (row) that a client (column) loses in a round of "
            "local training, mean over the rounds that were measured and over seeds. Negative values are classes that "
            "it has learned."
        )
        axes3 = Axis("client"), Axis("class"), Axis("forgotten", "percent")
        edge = max(abs(z) for grid in grids for row in grid.z for z in row if z is not None) or 1.0
        title = "Which client forgets which class"
        yield Grids("class-forgetting", title, caption, *axes3, grids, -edge, edge)


def _sorted_accuracies(run: StoredRun, number: int) -> ChartLine | None:
    """Return the main metric of the clients from worst to best in the last round that has it, None if no round has."""
    key = f"clients.{run.main_metric.name}"
    rows = [(row["round"], row["probes"][key]) for row in run.rows if _has(row, key)]
    lists = [values for round, values in rows if round == rows[-1][0]]
    clients = [[value for value in each if value is not None] for each in zip(*lists, strict=False)]
    found = sorted((fmean(values) for values in clients if values), key=run.main_metric.score)
    if not found:
        return None
    shares = [(n + 1) / len(found) for n in range(len(found))]
    return ChartLine(run.name, number, shares, [*found], dash=dash_index(number))


def _has(row: dict[str, Any], key: str) -> bool:
    return isinstance(row.get("probes", {}).get(key), list)


def _forgetting_grid(run: StoredRun, number: int) -> Grid | None:
    """Return the mean that each client forgets of each class, None if the run was not probed for it."""
    found: dict[int, list[list[float | None]]] = {}  # client: what it forgot of each class, once per round and seed
    for row in run.rows:
        if _has(row, "class-forgetting.forgotten") and _has(row, "class-forgetting.client"):
            clients, values = row["probes"]["class-forgetting.client"], row["probes"]["class-forgetting.forgotten"]
            classes = len(values) // len(clients)
            for place, client in enumerate(clients):
                found.setdefault(int(client), []).append(values[place * classes : (place + 1) * classes])
    if not found:
        return None
    columns = {client: [_mean(each) for each in zip(*lists, strict=False)] for client, lists in sorted(found.items())}
    z = [list(row) for row in zip(*columns.values(), strict=True)]
    return Grid(run.name, [*map(float, columns)], [*map(float, range(len(z)))], z, number)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
