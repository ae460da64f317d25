"""Tables of the terminal and the page: results, settings, probe values and flatness, one row per run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.cli.analyse import SUMMARY_COLUMNS
from fedflat.report.charts import COLOURS
from fedflat.report.comparison import (
    Documents,
    RunSettings,
    comparable_runs,
    differing_settings,
    measured_alike,
    method_labels,
    setting_name,
    setting_text,
)
from fedflat.report.training_charts import measure_title, number_points, probe_caption, single_probe_values
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import Result, mean_std

COLUMNS = ("method", "accuracy", "last 10 %", "rounds to {target}", "bytes down", "bytes up", "seconds", "note")


def result_cells(name: str, result: Result, target: float) -> list[str]:
    """One method's row as text."""
    reached = result.rounds_to(target)
    seeds = len(result.seeds)
    lost = "diverged: seed " + " ".join(map(str, result.diverged_seeds)) if result.diverged else ""
    return [
        name,
        mean_and_spread(result.final_accuracy, result.final_accuracy_std, seeds, ".2%"),
        mean_and_spread(result.last10_accuracy, result.last10_accuracy_std, seeds, ".2%"),
        "–" if reached is None else f"{reached:.1f}".removesuffix(".0"),
        f"{result.bytes_down_per_client_round:,}",
        f"{result.bytes_up_per_client_round:,}",
        f"{result.seconds:.1f}",
        lost,
    ]


def mean_and_spread(mean: float, std: float, count: int, form: str) -> str:
    """mean ± standard deviation; of a single value, which has none, the value."""
    return f"{mean:{form}}" + (f" ± {std:{form}}" if count > 1 else "")


def result_headings(target: float) -> list[str]:
    """Titles of the columns."""
    return [column.format(target=f"{target:.0%}") for column in COLUMNS]


def best_result(results: Sequence[Result]) -> float:
    """The highest mean accuracy over the last tenth of the evaluations, which tables set in bold."""
    return max((result.last10_accuracy for result in results), default=0.0)


def print_results(results: Sequence[tuple[str, Result]], target: float = 0.8) -> None:
    """Print the comparison; bytes are per client and round."""
    table = Table(caption="mean ± standard deviation over seeds; bytes per client and round")
    for column in result_headings(target):
        table.add_column(column, justify="left" if column in ("method", "note") else "right")
    top = best_result([result for _, result in results])
    for name, result in results:
        style = "bold" if len(results) > 1 and result.last10_accuracy == top else None
        table.add_row(*result_cells(name, result, target), style=style)
    if not any(result.diverged for _, result in results):
        table.columns.pop()
    console = Console()
    console.print(table) if console.is_terminal else Console(width=140).print(table)


@dataclass(frozen=True)
class PageCell:
    """What a cell says; the first of a row has its run's colour."""

    text: str
    best: bool = False
    colour: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table of the page; columns in which no cell says anything are left out."""

    id: str
    title: str
    caption: str
    headings: list[str]
    rows: list[list[PageCell]]


def _page_table(
    id: str, title: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[PageCell]]
) -> PageTable:
    kept = [n for n in range(len(headings)) if any(row[n].text for row in rows)]
    return PageTable(id, title, caption, [headings[n] for n in kept], [[row[n] for n in kept] for row in rows])


def _leads(runs: Sequence[StoredRun]) -> list[list[PageCell]]:
    """Each run's method, and its folder where methods do not name all folders."""
    methods = method_labels(runs)
    apart = any(method != run.name for method, run in zip(methods, runs, strict=True))
    return [
        [PageCell(method, colour=COLOURS[number % len(COLOURS)]), PageCell(run.name if apart else "")]
        for number, (method, run) in enumerate(zip(methods, runs, strict=True))
    ]


# headings, and the number of theirs that should be high
BEST_DIRECTION: dict[str, Callable[[Result, float], float]] = {
    "accuracy": lambda result, target: result.final_accuracy,
    "last 10 %": lambda result, target: result.last10_accuracy,
    "rounds": lambda result, target: -(result.rounds_to(target) or math.inf),
}


Printed = Callable[[Mapping[str, Any]], tuple[str, float] | None]  # source and accuracy a paper prints for a config


def nothing_printed(config: Mapping[str, Any]) -> None:
    """No paper prints a number for any configuration."""


def results_table(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], target: float, printed: Printed = nothing_printed
) -> PageTable:
    """One row per finished run with the settings it does not share, beside what a paper prints for these settings.

    `printed` gives the source and the accuracy (in percent) that a paper prints for a configuration.
    """
    finished = [number for number, run in enumerate(runs) if run.result]
    apart, leads, titles = differing_settings(settings), _leads(runs), result_headings(target)[1:]
    rows = []
    for number in finished:
        rivals = [other for other in finished if comparable_runs(settings[number], settings[other])]
        measured = _measured(runs, number, rivals, target)
        said = [PageCell(setting_text(settings[number], key)) for key in apart]
        rows.append(
            [*leads[number], *said, *measured[:2], PageCell(_printed_text(printed(runs[number].config))), *measured[2:]]
        )
    caption = (
        f"Accuracy on the {evaluated_on(runs)} set, mean ± standard deviation over seeds, of the last evaluation and "
        "of the last tenth of them. The best are bold, among runs that differ in method and seeds only. Bytes are per "
        "client and round, counted on the messages. Click a heading to sort."
    )
    columns = ["method", "folder", *map(setting_name, apart), *titles[:2], "paper", *titles[2:]]
    return _page_table("headline", "Results", caption, columns, rows)


def _measured(runs: Sequence[StoredRun], number: int, rivals: Sequence[int], target: float) -> list[PageCell]:
    """The numbers of a run, bold where none of its rivals, itself among them, is better."""
    result, others = runs[number].result, [found for rival in rivals if (found := runs[rival].result)]
    assert result
    pairs = zip(result_cells("", result, target), result_headings(target), strict=True)
    return [PageCell(text, _best(heading, result, others, target)) for text, heading in pairs][1:]


def _best(heading: str, result: Result, others: Sequence[Result], target: float) -> bool:
    """Whether a result is the best of several in a column whose numbers have better and worse."""
    score = next((score for name, score in BEST_DIRECTION.items() if heading.startswith(name)), None)
    if not score or len(others) < 2:
        return False
    return score(result, target) == max(score(other, target) for other in others) > -math.inf


def _printed_text(found: tuple[str, float] | None) -> str:
    """A printed accuracy and its source, '' where there is none."""
    return f"{found[1]:.2f}% ({found[0]})" if found else ""


FLATNESS_COLUMNS = {
    "lambda1",
    "trace",
    "lpf",
    "discrepancy",
    "mean_lambda_local",
    "mean_lambda_global",
}  # the lower, the flatter


def flatness_table(
    runs: Sequence[StoredRun], settings: Sequence[RunSettings], documents: Sequence[Documents]
) -> PageTable:
    """One row per analysed run, mean ± standard deviation over seeds; the flattest of those that compare is bold."""
    keys = [(what, key) for what, numbers in SUMMARY_COLUMNS.items() for key in numbers]
    columns = [_flatness_column(settings, documents, what, key) for what, key in keys]
    leads = _leads(runs)
    rows = [[*leads[n], *(column[n] for column in columns)] for n, found in enumerate(documents) if found]
    titles = ["method", "folder", *(title for numbers in SUMMARY_COLUMNS.values() for title in numbers.values())]
    caption = (
        "What fedflat analyse measured, mean ± standard deviation over seeds; of what measures sharpness the lowest "
        "is bold, among runs that differ in method and seeds only and were measured alike. docs/analysis.md says what "
        "each number is."
    )
    return _page_table("flat", "Flatness", caption, titles, rows)


def _flatness_column(
    settings: Sequence[RunSettings], documents: Sequence[Documents], what: str, key: str
) -> list[PageCell]:
    """One number of every run: a dash where a run lacks it, nothing where all do."""
    found = {n: values for n, each in enumerate(documents) if (values := _over_seeds(each, what, key))}
    means = {n: mean_std(values)[0] for n, values in found.items()}
    column = [PageCell("–" if found else "")] * len(documents)
    for n, values in found.items():
        rivals = [mean for other, mean in means.items() if _compete(settings, documents, what, n, other)]
        column[n] = PageCell(_text(values), key in FLATNESS_COLUMNS and len(rivals) > 1 and means[n] == min(rivals))
    return column


def _compete(settings: Sequence[RunSettings], documents: Sequence[Documents], what: str, one: int, other: int) -> bool:
    """Whether two runs compare, as they were trained and as they were measured."""
    return comparable_runs(settings[one], settings[other]) and measured_alike(documents[one], documents[other], what)


def probes_table(runs: Sequence[StoredRun]) -> PageTable:
    """What probes measured once, one row per run that has any of it, mean ± standard deviation over seeds."""
    keys, leads, rows = single_probe_values(runs), _leads(runs), []
    for run, lead in zip(runs, leads, strict=True):
        found = [[number for _, number in number_points(run, key)] for key in keys]
        if any(found):
            rows.append([*lead, *(PageCell(_text(values) if values else "–") for values in found)])
    abouts = " ".join(dict.fromkeys(probe_caption(runs, key) for key in keys))
    caption = f"Probes that measured once, mean ± standard deviation over seeds. {abouts}"
    return _page_table(
        "once", "Probes that measured once", caption, ["method", "folder", *map(measure_title, keys)], rows
    )


def _over_seeds(documents: Documents, what: str, key: str) -> list[float]:
    """One number of a run, of every seed that has it."""
    seeds = documents.get(what, {}).get("seeds", {}).values()
    return [seed[key] for seed in seeds if seed.get(key) is not None]


def _text(values: list[float]) -> str:
    """Three digits of the mean, and of several values the standard deviation to the same place."""
    mean, std = mean_std(values)
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 2
    form = f".{places}f" if places <= 6 else ".2e"
    return mean_and_spread(mean, std, len(values), form)
