"""Tables with one row per run: results for the terminal and the page, probes and flatness for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedflat.core.metric import ACCURACY, MainMetric, common_metric
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
    training_settings,
)
from fedflat.report.significance import RULE, Mark, SeedValues, mark_best
from fedflat.report.training_charts import measure_title, number_points, probe_caption, single_probe_values
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import Result, mean_std

RESULT_COLUMNS = ("method", "{metric}", "last 10 %", "rounds to {target}", "bytes down", "bytes up", "seconds", "note")
LEFT_OUT_IF_NARROW = ("bytes down", "bytes up", "seconds")  # of the terminal's table, in this order
MARKS: dict[Mark, str] = {"": "", "best": "", "tied": "≈ "}
SHARPNESS_COLUMNS = {"lambda1", "trace", "lpf", "discrepancy", "mean_lambda_local", "mean_lambda_global"}  # low is flat

# Returns the source and the accuracy (in percent) that a paper prints for a run's configuration, None if it does not.
PrintedAccuracy = Callable[[Mapping[str, Any]], tuple[str, float] | None]


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
    seeds, form = len(result.seeds), result.main_metric.form
    return [
        name,
        mean_and_std(result.final, result.final_std, seeds, form),
        mean_and_std(result.last10, result.last10_std, seeds, form),
        "–" if rounds is None else f"{rounds:.1f}".removesuffix(".0"),
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
    scores: dict[str, tuple[dict[int, Any], bool]] = {
        "{metric}": (dict(zip(result.seeds, result.final_per_seed, strict=False)), higher),
        "last 10 %": (dict(zip(result.seeds, result.last10_per_seed, strict=False)), higher),
        "rounds to {target}": ({} if None in reached.values() else reached, False),
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


def print_results(runs: Sequence[StoredRun], target: float = 0.8) -> None:
    """Print the table of results of finished runs. On a narrow terminal it has fewer columns, never shorter names.

    Args:
        runs: the runs, named and ordered as they are to appear.
        target: accuracy, as a fraction, for the column "rounds to …".
    """
    results = {n: run.result for n, run in enumerate(runs) if run.result}
    marks, terminal = mark_results(judge_results(results, training_settings(runs), target)), Console()
    console = terminal if terminal.is_terminal else Console(width=140)
    left_out = {"note"} if not any(result.diverged for result in results.values()) else set()
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
        rows = [[row[n] for n in kept] for row in self.rows]
        return replace(self, headings=[self.headings[n] for n in kept], rows=rows)


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
