"""The page's tables: the headline, what probes measured once, and what `fedflat analyse` found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedflat.flatness.summary import SHOWN
from fedflat.report.analyses import Documents
from fedflat.report.charts import COLOURS
from fedflat.report.measured import alike
from fedflat.report.names import method_names
from fedflat.report.probes import about, measured_once, numbers, title
from fedflat.report.settings import Settings, comparable, differing, value, words
from fedflat.report.table import cells, headings, with_spread
from fedflat.runs.read import StoredRun, evaluated_on
from fedflat.runs.result import Result, mean_std


@dataclass(frozen=True)
class Cell:
    """What a cell says; the first of a row has its run's colour."""

    text: str
    best: bool = False
    colour: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table of the page; columns in which no cell says anything are left out."""

    id: str
    title: str
    caption: str
    headings: list[str]
    rows: list[list[Cell]]


def _sheet(id: str, title: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Sheet:
    kept = [n for n in range(len(headings)) if any(row[n].text for row in rows)]
    return Sheet(id, title, caption, [headings[n] for n in kept], [[row[n] for n in kept] for row in rows])


def _leads(runs: Sequence[StoredRun]) -> list[list[Cell]]:
    """Each run's method, and its folder where methods do not name all folders."""
    methods = method_names(runs)
    apart = any(method != run.name for method, run in zip(methods, runs, strict=True))
    return [
        [Cell(method, colour=COLOURS[number % len(COLOURS)]), Cell(run.name if apart else "")]
        for number, (method, run) in enumerate(zip(methods, runs, strict=True))
    ]


BEST: dict[str, Callable[[Result, float], float]] = {  # headings, and the number of theirs that should be high
    "accuracy": lambda result, target: result.final_accuracy,
    "last 10 %": lambda result, target: result.last10_accuracy,
    "rounds": lambda result, target: -(result.rounds_to(target) or math.inf),
}


def results_sheet(runs: Sequence[StoredRun], settings: Sequence[Settings], target: float) -> Sheet:
    """One row per finished run with what it does not share, beside what a paper prints for these settings."""
    finished = [number for number, run in enumerate(runs) if run.result]
    apart, leads, titles = differing(settings), _leads(runs), headings(target)[1:]
    rows = []
    for number in finished:
        rivals = [other for other in finished if comparable(settings[number], settings[other])]
        measured = _measured(runs, number, rivals, target)
        said = [Cell(value(settings[number], key)) for key in apart]
        rows.append([*leads[number], *said, *measured[:2], Cell(_printed(runs[number])), *measured[2:]])
    caption = (
        f"Accuracy on the {evaluated_on(runs)} set, mean ± standard deviation over seeds, of the last evaluation and "
        "of the last tenth of them. The best are bold, among runs that differ in method and seeds only. Bytes are per "
        "client and round, counted on the messages. Click a heading to sort."
    )
    columns = ["method", "folder", *map(words, apart), *titles[:2], "paper", *titles[2:]]
    return _sheet("headline", "Results", caption, columns, rows)


def _measured(runs: Sequence[StoredRun], number: int, rivals: Sequence[int], target: float) -> list[Cell]:
    """The numbers of a run, bold where none of its rivals, itself among them, is better."""
    result, others = runs[number].result, [found for rival in rivals if (found := runs[rival].result)]
    assert result
    pairs = zip(cells("", result, target), headings(target), strict=True)
    return [Cell(text, _best(heading, result, others, target)) for text, heading in pairs][1:]


def _best(heading: str, result: Result, others: Sequence[Result], target: float) -> bool:
    """Whether a result is the best of several in a column whose numbers have better and worse."""
    score = next((score for name, score in BEST.items() if heading.startswith(name)), None)
    if not score or len(others) < 2:
        return False
    return score(result, target) == max(score(other, target) for other in others) > -math.inf


def _printed(run: StoredRun) -> str:
    """The accuracy that a paper prints for these settings, and where."""
    from fedflat.papers.cells import printed

    found = printed(run.config)
    return f"{found[1]:.2f}% ({found[0]})" if found else ""


FLAT = {"lambda1", "trace", "lpf", "discrepancy", "mean_lambda_local", "mean_lambda_global"}  # the lower, the flatter


def flatness_sheet(runs: Sequence[StoredRun], settings: Sequence[Settings], documents: Sequence[Documents]) -> Sheet:
    """One row per analysed run, mean ± standard deviation over seeds; the flattest of those that compare is bold."""
    keys = [(what, key) for what, numbers in SHOWN.items() for key in numbers]
    columns = [_column(settings, documents, what, key) for what, key in keys]
    leads = _leads(runs)
    rows = [[*leads[n], *(column[n] for column in columns)] for n, found in enumerate(documents) if found]
    titles = ["method", "folder", *(title for numbers in SHOWN.values() for title in numbers.values())]
    caption = (
        "What fedflat analyse measured, mean ± standard deviation over seeds; of what measures sharpness the lowest "
        "is bold, among runs that differ in method and seeds only and were measured alike. docs/analysis.md says what "
        "each number is."
    )
    return _sheet("flat", "Flatness", caption, titles, rows)


def _column(settings: Sequence[Settings], documents: Sequence[Documents], what: str, key: str) -> list[Cell]:
    """One number of every run: a dash where a run lacks it, nothing where all do."""
    found = {n: values for n, each in enumerate(documents) if (values := _over_seeds(each, what, key))}
    means = {n: mean_std(values)[0] for n, values in found.items()}
    column = [Cell("–" if found else "")] * len(documents)
    for n, values in found.items():
        rivals = [mean for other, mean in means.items() if _compete(settings, documents, what, n, other)]
        column[n] = Cell(_text(values), key in FLAT and len(rivals) > 1 and means[n] == min(rivals))
    return column


def _compete(settings: Sequence[Settings], documents: Sequence[Documents], what: str, one: int, other: int) -> bool:
    """Whether two runs compare, as they were trained and as they were measured."""
    return comparable(settings[one], settings[other]) and alike(documents[one], documents[other], what)


def probes_sheet(runs: Sequence[StoredRun]) -> Sheet:
    """What probes measured once, one row per run that has any of it, mean ± standard deviation over seeds."""
    keys, leads, rows = measured_once(runs), _leads(runs), []
    for run, lead in zip(runs, leads, strict=True):
        found = [[number for _, number in numbers(run, key)] for key in keys]
        if any(found):
            rows.append([*lead, *(Cell(_text(values) if values else "–") for values in found)])
    abouts = " ".join(dict.fromkeys(about(runs, key) for key in keys))
    caption = f"Probes that measured once, mean ± standard deviation over seeds. {abouts}"
    return _sheet("once", "Probes that measured once", caption, ["method", "folder", *map(title, keys)], rows)


def _over_seeds(documents: Documents, what: str, key: str) -> list[float]:
    """One number of a run, of every seed that has it."""
    seeds = documents.get(what, {}).get("seeds", {}).values()
    return [seed[key] for seed in seeds if seed.get(key) is not None]


def _text(values: list[float]) -> str:
    """Three digits of the mean, and of several values the standard deviation to the same place."""
    mean, std = mean_std(values)
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 2
    form = f".{places}f" if places <= 6 else ".2e"
    return with_spread(mean, std, len(values), form)
