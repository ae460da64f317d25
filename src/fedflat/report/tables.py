"""Tables with one row per run: results for the terminal and the page, probes and flatness for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.report.charts import COLOURS
from fedflat.report.comparison import (
    SUMMARY_COLUMNS,
    AnalysisDocuments,
    RunSettings,
    are_comparable,
    differing_settings,
    measured_alike,
    method_labels,
    setting_name,
    setting_text,
)
from fedflat.report.training_charts import measure_title, number_points, probe_caption, single_probe_values
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import Result, mean_std

RESULT_COLUMNS = ("method", "accuracy", "last 10 %", "rounds to {target}", "bytes down", "bytes up", "seconds", "note")
RESULT_SCORES: dict[str, Callable[[Result, float], float]] = {  # columns that have a best value: the highest score
    "accuracy": lambda result, target: result.final_accuracy,
    "last 10 %": lambda result, target: result.last10_accuracy,
    "rounds to {target}": lambda result, target: -(result.rounds_to(target) or math.inf),
}
SHARPNESS_COLUMNS = {"lambda1", "trace", "lpf", "discrepancy", "mean_lambda_local", "mean_lambda_global"}  # low is flat

# Returns the source and the accuracy (in percent) that a paper prints for a run's configuration, None if it does not.
PrintedAccuracy = Callable[[Mapping[str, Any]], tuple[str, float] | None]


def result_headings(target: float) -> list[str]:
    """Return the headings of the table of results, which depend on the accuracy of "rounds to …"."""
    return [column.format(target=f"{target:.0%}") for column in RESULT_COLUMNS]


def result_cells(name: str, result: Result, target: float) -> list[str]:
    """Return one row of the table of results as text.

    Args:
        name: the first cell.
        result: the run's result.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    rounds = result.rounds_to(target)
    seeds = len(result.seeds)
    return [
        name,
        mean_and_std(result.final_accuracy, result.final_accuracy_std, seeds, ".2%"),
        mean_and_std(result.last10_accuracy, result.last10_accuracy_std, seeds, ".2%"),
        "–" if rounds is None else f"{rounds:.1f}".removesuffix(".0"),
        f"{result.bytes_down_per_client_round:,}",
        f"{result.bytes_up_per_client_round:,}",
        f"{result.seconds:.1f}",
        "diverged: seed " + " ".join(map(str, result.diverged_seeds)) if result.diverged else "",
    ]


def mean_and_std(mean: float, std: float, count: int, form: str) -> str:
    """Return "mean ± std" in the format `form`; the mean alone if it is of a single value."""
    return f"{mean:{form}}" + (f" ± {std:{form}}" if count > 1 else "")


def print_results(results: Sequence[tuple[str, Result]], target: float = 0.8) -> None:
    """Print the table of results; the row with the highest accuracy over the last tenth of evaluations is bold.

    Args:
        results: label and result of each run.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    table = Table(caption="mean ± standard deviation over seeds; bytes per client and round")
    for heading in result_headings(target):
        table.add_column(heading, justify="left" if heading in ("method", "note") else "right")
    best = max((result.last10_accuracy for _, result in results), default=0.0)
    for name, result in results:
        style = "bold" if len(results) > 1 and result.last10_accuracy == best else None
        table.add_row(*result_cells(name, result, target), style=style)
    if not any(result.diverged for _, result in results):
        table.columns.pop()
    console = Console()
    console.print(table) if console.is_terminal else Console(width=140).print(table)


@dataclass(frozen=True)
class PageCell:
    """A cell of a table of the page: its text, whether it is bold, and the colour of the run's dot, if any."""

    text: str
    best: bool = False
    colour: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Args:
        id: of the HTML element.
        title: the name of the table for screen readers.
        caption: the text below the table.
        headings: one for each column.
        rows: the cells, row by row.
    """

    id: str
    title: str
    caption: str
    headings: list[str]
    rows: list[list[PageCell]]

    def without_empty_columns(self) -> PageTable:
        """Return the table without columns in which no cell has a text."""
        kept = [n for n in range(len(self.headings)) if any(row[n].text for row in self.rows)]
        rows = [[row[n] for n in kept] for row in self.rows]
        return PageTable(self.id, self.title, self.caption, [self.headings[n] for n in kept], rows)


def _label_cells(runs: Sequence[StoredRun]) -> list[list[PageCell]]:
    """Return the cells "method" and "folder" of each run; folders stay empty if all are named like their methods."""
    methods = method_labels(runs)
    show_folders = any(method != run.name for method, run in zip(methods, runs, strict=True))
    return [
        [PageCell(method, colour=COLOURS[number % len(COLOURS)]), PageCell(run.name if show_folders else "")]
        for number, (method, run) in enumerate(zip(methods, runs, strict=True))
    ]


def results_table(
    runs: Sequence[StoredRun],
    settings: Sequence[RunSettings],
    target: float,
    printed: PrintedAccuracy | None = None,
) -> PageTable:
    """Return the results of all finished runs, with a column for every setting in which the runs differ.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
        target: accuracy, as a fraction, for the column "rounds to …".
        printed: what papers print, for the column "paper".
    """
    results = {number: run.result for number, run in enumerate(runs) if run.result}
    differing, labels, headings = differing_settings(settings), _label_cells(runs), result_headings(target)[1:]
    rows = []
    for n, result in results.items():
        comparable = [other for m, other in results.items() if are_comparable(settings[n], settings[m])]
        numbers = _number_cells(result, comparable, target)
        own_settings = [PageCell(setting_text(settings[n], key)) for key in differing]
        paper = PageCell(_printed_text(printed(runs[n].config) if printed else None))
        rows.append([*labels[n], *own_settings, *numbers[:2], paper, *numbers[2:]])
    caption = (
        f"Accuracy on the {evaluated_on(runs)} set, mean ± standard deviation over seeds, of the last evaluation and "
        "of the last tenth of them. The best are bold, among runs that differ in method and seeds only. Bytes are per "
        "client and round, counted on the messages. Click a heading to sort."
    )
    columns = ["method", "folder", *map(setting_name, differing), *headings[:2], "paper", *headings[2:]]
    return PageTable("headline", "Results", caption, columns, rows).without_empty_columns()


def _number_cells(result: Result, comparable: Sequence[Result], target: float) -> list[PageCell]:
    """Return the cells of a result after the name, bold where no comparable run, itself among them, is better."""
    texts = zip(RESULT_COLUMNS, result_cells("", result, target), strict=True)
    return [PageCell(text, _is_best(column, result, comparable, target)) for column, text in texts][1:]


def _is_best(column: str, result: Result, comparable: Sequence[Result], target: float) -> bool:
    """Return whether a result has the best score in a column; a column without scores has no best."""
    score = RESULT_SCORES.get(column)
    if not score or len(comparable) < 2:
        return False
    return score(result, target) == max(score(other, target) for other in comparable) > -math.inf


def _printed_text(printed: tuple[str, float] | None) -> str:
    """Return a paper's accuracy and its source, "" if there is none."""
    return f"{printed[1]:.2f}% ({printed[0]})" if printed else ""


def flatness_table(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], documents: Sequence[AnalysisDocuments]
) -> PageTable:
    """Return what was measured of all analysed runs, mean ± standard deviation over seeds.

    Args:
        runs: the runs that are shown together.
        settings: their training settings.
        documents: their analyses.
    """
    keys = [(what, key) for what, numbers in SUMMARY_COLUMNS.items() for key in numbers]
    columns = [_flatness_column(settings, documents, what, key) for what, key in keys]
    labels = _label_cells(runs)
    rows = [[*labels[n], *(column[n] for column in columns)] for n, of_run in enumerate(documents) if of_run]
    headings = [heading for numbers in SUMMARY_COLUMNS.values() for heading in numbers.values()]
    caption = (
        "What fedflat analyse measured, mean ± standard deviation over seeds. The lowest value of each measure of "
        "sharpness is bold, among runs that differ in method and seeds only and were measured alike. "
        "docs/analysis.md explains each number."
    )
    return PageTable("flat", "Flatness", caption, ["method", "folder", *headings], rows).without_empty_columns()


def _flatness_column(
    settings: Sequence[RunSettings], documents: Sequence[AnalysisDocuments], what: str, key: str
) -> list[PageCell]:
    """Return one number of every run; a run without it has a dash, or nothing if no run has it."""
    values = {n: found for n, of_run in enumerate(documents) if (found := _seed_values(of_run, what, key))}
    means = {n: mean_std(found)[0] for n, found in values.items()}
    column = [PageCell("–" if values else "")] * len(documents)
    for n, found in values.items():
        comparable = [
            mean
            for m, mean in means.items()
            if are_comparable(settings[n], settings[m]) and measured_alike(documents[n], documents[m], what)
        ]
        best = key in SHARPNESS_COLUMNS and len(comparable) > 1 and means[n] == min(comparable)
        column[n] = PageCell(_three_digits(found), best)
    return column


def _seed_values(documents: AnalysisDocuments, what: str, key: str) -> list[float]:
    """Return one number of a run for every seed that has it."""
    seeds = documents.get(what, {}).get("seeds", {}).values()
    return [seed[key] for seed in seeds if seed.get(key) is not None]


def probes_table(runs: Sequence[StoredRun]) -> PageTable:
    """Return the probes' numbers that were measured in one round only, mean ± standard deviation over seeds."""
    keys, rows = single_probe_values(runs), []
    for run, labels in zip(runs, _label_cells(runs), strict=True):
        values = [[number for _, number in number_points(run, key)] for key in keys]
        if any(values):
            rows.append([*labels, *(PageCell(_three_digits(each) if each else "–") for each in values)])
    captions = " ".join(dict.fromkeys(probe_caption(runs, key) for key in keys))
    title = "Probes that measured once"
    caption = f"{title}, mean ± standard deviation over seeds. {captions}"
    headings = ["method", "folder", *map(measure_title, keys)]
    return PageTable("once", title, caption, headings, rows).without_empty_columns()


def _three_digits(values: list[float]) -> str:
    """Return the mean with three significant digits, and the standard deviation with as many decimal places."""
    mean, std = mean_std(values)
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 2
    return mean_and_std(mean, std, len(values), f".{places}f" if places <= 6 else ".2e")
