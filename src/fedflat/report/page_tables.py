"""Tables of the page with one row per run: results, single clients, probes that measured once, and flatness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedflat.core.metric import common_metric
from fedflat.report.comparison import (
    SUMMARY_COLUMNS,
    AnalysisDocuments,
    RunSettings,
    analysed_seeds,
    are_comparable,
    comparable_groups,
    differing_hyper_parameters,
    differing_settings,
    folder_name,
    measured_alike,
    setting_name,
    setting_text,
)
from fedflat.report.probe_charts import measure_title, number_points, probe_caption, single_probe_values
from fedflat.report.significance import RULE, Mark, SeedValues
from fedflat.report.tables import (
    CLIENT_COLUMNS,
    MARKS,
    RESULT_COLUMNS,
    JudgedColumn,
    client_cells,
    judge_results,
    mark_results,
    mean_and_std,
    result_cells,
    result_headings,
)
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import mean_std

SHARPNESS_COLUMNS = {"lambda1", "trace", "lpf", "discrepancy", "mean_lambda_local", "mean_lambda_global"}  # low is flat

# Returns the source and the accuracy (in percent) that a paper prints for a run's configuration, None if it does not.
PrintedAccuracy = Callable[[Mapping[str, Any]], tuple[str, float] | None]


@dataclass(frozen=True)
class PageCell:
    """A cell of a table of the page.

    Args:
        text: what it says.
        mark: whether its run is significantly the best in this column, or tied with the best.
        run: the number of the run whose line style is drawn before the text, None for no style.
        badge: a short warning after the text.
    """

    text: str
    mark: Mark = ""
    run: int | None = None
    badge: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Args:
        id: of the HTML element.
        title: the name of the table for screen readers.
        caption: the text below the table.
        headings: one for each column.
        rows: the cells, row by row; the first cell names the run.
        judged: the columns in which the best is marked.
    """

    id: str
    title: str
    caption: str
    headings: list[str]
    rows: list[list[PageCell]]
    judged: list[JudgedColumn] = field(default_factory=list)

    def without_empty_columns(self) -> PageTable:
        """Return the table without columns in which no cell has a text."""
        kept = [n for n in range(len(self.headings)) if any(row[n].text for row in self.rows)]
        headings, rows = [self.headings[n] for n in kept], [[row[n] for n in kept] for row in self.rows]
        judged = [column for column in self.judged if column.heading in headings]
        return replace(self, headings=headings, rows=rows, judged=judged)


def _label_cells(runs: Sequence[StoredRun]) -> list[list[PageCell]]:
    """Return the cells "run" and "folder" of each run; folders stay empty if all runs are named by their folder."""
    show_folders = any(folder_name(run) != run.name for run in runs)
    return [
        [PageCell(run.name, run=number, badge=diverged_text(run)), PageCell(folder_name(run) if show_folders else "")]
        for number, run in enumerate(runs)
    ]


def diverged_text(run: StoredRun) -> str:
    """Return "diverged: seed 1" for a run of which a seed's loss or metric is not finite, else ""."""
    seeds = dict.fromkeys(row["seed"] for row in run.rows if row["loss"] is None)
    seeds |= dict.fromkeys(run.result.diverged_seeds if run.result else ())
    return "diverged: seed " + " ".join(map(str, seeds)) if seeds else ""


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
    differing, hyper_parameters = differing_settings(settings), differing_hyper_parameters(runs)
    metric = common_metric(result.main_metric for result in results.values())
    labels, headings = _label_cells(runs), result_headings(target, metric)[1:-1]
    judged = judge_results(results, settings, target)
    marks, rows = mark_results(judged), []
    for n, result in results.items():
        texts = zip(RESULT_COLUMNS, result_cells("", result, target), strict=True)
        numbers = [PageCell(MARKS[marks.get((n, c), "")] + text, marks.get((n, c), "")) for c, text in texts][1:-1]
        own = [PageCell(hyper_parameters[key][n]) for key in hyper_parameters]
        own += [PageCell(setting_text(settings[n], key)) for key in differing]
        paper = PageCell(_printed_text(printed(runs[n].config) if printed else None))
        label, folder = labels[n]
        rows.append([label, *numbers[:2], paper, *numbers[2:], *own, folder])
    caption = (
        f"{metric.name.capitalize()} on the {evaluated_on(runs)} set, mean ± standard deviation over seeds, "
        "of the last evaluation and "
        f"of the last tenth of them. {RULE} Bytes are per client and round, counted on the messages. Click a heading "
        "to sort."
    )
    settings_columns = map(setting_name, [*hyper_parameters, *differing])
    columns = ["run", *headings[:2], "paper", *headings[2:], *settings_columns, "folder"]
    return PageTable("headline", "Results", caption, columns, rows, [*judged.values()]).without_empty_columns()


def _printed_text(printed: tuple[str, float] | None) -> str:
    """Return a paper's accuracy and its source, "" if there is none."""
    return f"{printed[1]:.2f}% ({printed[0]})" if printed else ""


def clients_table(runs: Sequence[StoredRun]) -> PageTable:
    """Return how the main metric of final models is spread over clients, of runs that were evaluated on clients."""
    metric = common_metric(run.main_metric for run in runs)
    labels, rows = _label_cells(runs), []
    for n, run in enumerate(runs):
        for _, *cells in client_cells(run.name, run.result) if run.result else ():
            rows.append([labels[n][0], *map(PageCell, cells), labels[n][1]])
    caption = (
        f"{metric.name.capitalize()} of the final model on single clients, each counted once: the mean over clients, "
        "the mean of the worst tenth of them, and the standard deviation; over several seeds mean ± standard "
        "deviation. Own test samples are those that the data assign to clients that train. Held-out clients never "
        "train; they are evaluated on all their samples."
    )
    headings = ["run", *CLIENT_COLUMNS[1:], "folder"]
    return PageTable("by-client", "Single clients", caption, headings, rows).without_empty_columns()


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
    judged = {key: _judge_flatness(runs, settings, documents, what, key) for what, key in keys}
    columns = [_flatness_column(documents, what, key, judged[key]) for what, key in keys]
    labels = _label_cells(runs)
    rows = [[*labels[n], *(column[n] for column in columns)] for n, of_run in enumerate(documents) if of_run]
    headings = [heading for numbers in SUMMARY_COLUMNS.values() for heading in numbers.values()]
    caption = (
        "What fedflat analyse measured, mean ± standard deviation over seeds. Bold and ≈ as in the results, for the "
        "lowest value of each measure of sharpness, among runs that were also measured alike. docs/analysis.md "
        "explains each number."
    )
    marked = [judged[key] for key in judged if key in SHARPNESS_COLUMNS and judged[key].groups]
    table = PageTable("flat", "Flatness", caption, ["run", "folder", *headings], rows, marked)
    return table.without_empty_columns()


def _judge_flatness(
    runs: Sequence[StoredRun],
    settings: Sequence[RunSettings],
    documents: Sequence[AnalysisDocuments],
    what: str,
    key: str,
) -> JudgedColumn:
    """Return one number of all runs that have it, in groups of comparable runs; a diverged run has no values."""
    values = {n: found for n, of_run in enumerate(documents) if (found := analysed_seeds(of_run, what, key))}
    groups = comparable_groups(
        values,
        lambda n, m: are_comparable(settings[n], settings[m]) and measured_alike(documents[n], documents[m], what),
    )
    judged: list[dict[int, SeedValues]] = [
        {n: {} if diverged_text(runs[n]) else values[n] for n in group} for group in groups
    ]
    return JudgedColumn(SUMMARY_COLUMNS[what][key], False, judged)


def _flatness_column(
    documents: Sequence[AnalysisDocuments], what: str, key: str, judged: JudgedColumn
) -> list[PageCell]:
    """Return one number of every run; a run without it has a dash, or nothing if no run has it."""
    values = {n: found for n, of_run in enumerate(documents) if (found := analysed_seeds(of_run, what, key))}
    marks = judged.marks() if key in SHARPNESS_COLUMNS else {}
    column = [PageCell("–" if values else "")] * len(documents)
    for n, of_run in values.items():
        mark = marks.get(n, "")
        column[n] = PageCell(MARKS[mark] + _three_digits([*of_run.values()]), mark)
    return column


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
    headings = ["run", "folder", *map(measure_title, keys)]
    return PageTable("once", title, caption, headings, rows).without_empty_columns()


def _three_digits(values: list[float]) -> str:
    """Return the mean with three significant digits, and the standard deviation with as many decimal places."""
    mean, std = mean_std(values)
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 2
    return mean_and_std(mean, std, len(values), f".{places}f" if places <= 6 else ".2e")
