"""The table of results: its cells, what is best in a column, and how the terminal shows it, with that of clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedflat.core.metric import ACCURACY, DEFAULT_TARGET, MainMetric, common_metric
from fedflat.report.comparison import RunSettings, are_comparable, comparable_groups, training_settings
from fedflat.report.significance import Mark, SeedValues, mark_best
from fedflat.runs.read import StoredRun
from fedflat.runs.result import Result, mean_std

RESULT_COLUMNS = ("method", "{metric}", "last 10 %", "rounds to {target}", "bytes down", "bytes up", "seconds", "note")
LEFT_OUT_IF_NARROW = ("bytes down", "bytes up", "seconds")  # of the terminal's table, in this order
MARKS: dict[Mark, str] = {"": "", "best": "", "tied": "≈ "}


def result_headings(target: float, metric: MainMetric = ACCURACY) -> list[str]:
    """Return the headings of the table of results, which depend on the metric and on the value of "rounds to …"."""
    shown = f"{target:.0%}" if metric.is_share else f"{target:g}"
    return [column.format(metric=metric.name, target=shown) for column in RESULT_COLUMNS]


def result_cells(name: str, result: Result, target: float) -> list[str]:
    """Return one row of the table of results as text.

    Args:
        name: the first cell.
        result: the run's result.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    rounds = result.rounds_to(target)
    reached = "–" if rounds is None else f"{rounds:.1f}".removesuffix(".0")
    seeds, form = len(result.seeds), result.main_metric.form
    return [
        name,
        mean_and_std(result.final, result.final_std, seeds, form),
        mean_and_std(result.last10, result.last10_std, seeds, form),
        reached if result.main_metric.has_target(target) else "",
        f"{result.bytes_down_per_client_round:,}",
        f"{result.bytes_up_per_client_round:,}",
        f"{result.seconds:.1f}",
        "diverged: seed " + " ".join(map(str, result.diverged_seeds)) if result.diverged else "",
    ]


def mean_and_std(mean: float, std: float, count: int, form: str) -> str:
    """Return "mean ± std" in the format `form`; the mean alone if it is of a single value, a dash if it is infinite."""
    if not math.isfinite(mean):
        return "–"
    return f"{mean:{form}}" + (f" ± {std:{form}}" if count > 1 else "")


def result_scores(result: Result, target: float) -> dict[str, tuple[SeedValues, bool]]:
    """Return the columns of results that have a best: each seed's value, and whether higher is better.

    A run that diverged has no values.

    Args:
        result: the run's result.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    reached, higher = result.first_rounds(target), result.higher_is_better
    if None in reached.values() or not result.main_metric.has_target(target):
        reached = {}
    scores: dict[str, tuple[dict[int, Any], bool]] = {
        "{metric}": (dict(zip(result.seeds, result.final_per_seed, strict=False)), higher),
        "last 10 %": (dict(zip(result.seeds, result.last10_per_seed, strict=False)), higher),
        "rounds to {target}": (reached, False),
    }
    return {column: ({} if result.diverged else values, higher) for column, (values, higher) in scores.items()}


@dataclass(frozen=True)
class JudgedColumn:
    """A column of a table in which the best of comparable runs is marked; the page marks the best of selected ones.

    Args:
        heading: the heading of the column.
        higher: whether higher values are better.
        groups: runs that are compared with each other: each run's values by seed, by the run's number.
    """

    heading: str
    higher: bool
    groups: list[dict[int, SeedValues]]

    def marks(self) -> dict[int, Mark]:
        """Return the mark of every run, by its number."""
        return {
            n: mark
            for group in self.groups
            for n, mark in zip(group, mark_best([*group.values()], self.higher), strict=True)
        }


def judge_results(
    results: Mapping[int, Result], settings: Sequence[RunSettings], target: float
) -> dict[str, JudgedColumn]:
    """Return the columns of results that have a best, by their name in RESULT_COLUMNS.

    Args:
        results: the results by the number of the run.
        settings: the training settings of all runs.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    if not results:
        return {}
    scores = {n: result_scores(result, target) for n, result in results.items()}
    groups = comparable_groups(results, lambda n, m: are_comparable(settings[n], settings[m]))
    metric = common_metric(result.main_metric for result in results.values())
    headings = dict(zip(RESULT_COLUMNS, result_headings(target, metric), strict=True))
    return {
        column: JudgedColumn(heading, higher, [{n: scores[n][column][0] for n in group} for group in groups])
        for column, (_, higher) in scores[groups[0][0]].items()
        for heading in [headings[column]]
    }


def mark_results(judged: Mapping[str, JudgedColumn]) -> dict[tuple[int, str], Mark]:
    """Return the mark of every run and column of RESULT_COLUMNS that is best or tied among comparable runs."""
    return {(n, column): mark for column, each in judged.items() for n, mark in each.marks().items()}


def print_results(runs: Sequence[StoredRun], target: float = DEFAULT_TARGET) -> None:
    """Print the table of results of finished runs. On a narrow terminal it has fewer columns, never shorter names.

    Args:
        runs: the runs, named and ordered as they are to appear.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    results = {n: run.result for n, run in enumerate(runs) if run.result}
    marks, terminal = mark_results(judge_results(results, training_settings(runs), target)), Console()
    console = terminal if terminal.is_terminal else Console(width=140)
    left_out = {"note"} if not any(result.diverged for result in results.values()) else set()
    if not common_metric(result.main_metric for result in results.values()).has_target(target):
        left_out |= {"rounds to {target}"}
    for narrow in (*LEFT_OUT_IF_NARROW, ""):
        table = _terminal_table(runs, results, marks, target, left_out)
        if Measurement.get(console, console.options.update(width=1000), table).maximum <= console.width:
            break
        left_out |= {narrow}
    console.print(table)
    if rows := [row for n, result in results.items() for row in client_cells(runs[n].name, result)]:
        console.print(_clients_table(rows))
    if any(mark == "tied" for mark in marks.values()):
        console.print("≈ is not significantly different from the best (t-test over seeds, p ≥ 0.05)", highlight=False)


CLIENT_GROUPS = {"training_clients": "own test samples", "held_out_clients": "held out"}
CLIENT_COLUMNS = ("method", "clients", "number", "mean", "worst 10 %", "std")


def client_cells(name: str, result: Result) -> list[list[str]]:
    """Return the rows of the table of clients as text: one for each group of clients that the run was evaluated on.

    Args:
        name: the first cell.
        result: the run's result.
    """
    groups = {title: getattr(result, field) for field, title in CLIENT_GROUPS.items()}
    rows = []
    for title, group in groups.items():
        if group:
            spreads = [_over_seeds(group[key], result.main_metric) for key in ("mean", "worst10", "std")]
            rows.append([name, title, f"{group['clients']:,}", *spreads])
    return rows


def _over_seeds(values: Sequence[float | None], metric: MainMetric) -> str:
    """Return the mean over seeds, and the standard deviation of several; a dash if a seed diverged."""
    numbers = [metric.worst if value is None else value for value in values]
    return mean_and_std(*mean_std(numbers), len(numbers), metric.form)


def _clients_table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(caption="the final model on single clients: mean, worst tenth and standard deviation over clients")
    for column in CLIENT_COLUMNS:
        table.add_column(column, justify="left" if column in ("method", "clients") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _terminal_table(
    runs: Sequence[StoredRun],
    results: Mapping[int, Result],
    marks: Mapping[tuple[int, str], Mark],
    target: float,
    left_out: set[str],
) -> Table:
    """Return the table of results for a terminal, with bold where a run is significantly the best."""
    hidden = [column for column in LEFT_OUT_IF_NARROW if column in left_out]
    missing = f"; without {', '.join(hidden)}: the terminal is narrow" if hidden else ""
    table = Table(caption=f"mean ± standard deviation over seeds; bytes per client and round{missing}")
    metric = common_metric(result.main_metric for result in results.values())
    kept = [n for n, column in enumerate(RESULT_COLUMNS) if column not in left_out]
    for n in kept:
        justify: Any = "left" if RESULT_COLUMNS[n] in ("method", "note") else "right"
        table.add_column(result_headings(target, metric)[n], justify=justify, overflow="fold")
    for number, result in results.items():
        cells = result_cells(runs[number].name, result, target)
        row_marks = [marks.get((number, column), "") for column in RESULT_COLUMNS]
        texts = [Text(MARKS[row_marks[n]] + cells[n], style="bold" if row_marks[n] == "best" else "") for n in kept]
        table.add_row(*texts)
    return table
