"""The page's tables: the headline, and what `fedflat analyse` found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedflat.experiments.result import Result, mean_std
from fedflat.flatness.summary import SHOWN
from fedflat.report.analyses import Documents
from fedflat.report.charts import COLOURS
from fedflat.report.runs import Run
from fedflat.report.table import cells, headings


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


def _coloured(number: int, name: str) -> Cell:
    return Cell(name, colour=COLOURS[number % len(COLOURS)])


BEST: dict[str, Callable[[Result, float], float]] = {  # headings, and the number of theirs that should be high
    "accuracy": lambda result, target: result.final_accuracy,
    "last 10 %": lambda result, target: result.last10_accuracy,
    "rounds": lambda result, target: -(result.rounds_to(target) or math.inf),
}


def results_sheet(runs: Sequence[Run], target: float) -> Sheet:
    """One row per finished run, the best of several in bold, beside what a paper prints for these settings."""
    finished = [(number, run, run.result) for number, run in enumerate(runs) if run.result]
    results, titles = [result for *_, result in finished], headings(target)
    bold = [_best(title, results, target) for title in titles]
    rows = []
    for place, (number, run, result) in enumerate(finished):
        texts = cells(run.name, result, target)
        row = [Cell(text, place in best) for text, best in zip(texts, bold, strict=True)]
        rows.append([_coloured(number, run.name), *row[1:3], Cell(_printed(run)), *row[3:]])
    caption = (
        "Mean ± standard deviation over seeds, of the last evaluation and of the last tenth of them; the best are "
        "bold. Bytes are per client and round, counted on the messages. Click a heading to sort."
    )
    return _sheet("headline", "Results", caption, [*titles[:3], "paper", *titles[3:]], rows)


def _best(title: str, results: Sequence[Result], target: float) -> set[int]:
    """Which of several results are the best in a column, none where its numbers have no better and worse."""
    score = next((score for name, score in BEST.items() if title.startswith(name)), None)
    scores = [score(result, target) for result in results] if score and len(results) > 1 else []
    return {n for n, value in enumerate(scores) if value == max(scores) > -math.inf}


def _printed(run: Run) -> str:
    """The accuracy that a paper prints for these settings, and where."""
    from fedflat.papers import printed

    found = printed(run.config)
    return f"{found[1]:.2f}% ({found[0]})" if found else ""


FLAT = {"lambda1", "trace", "lpf", "discrepancy", "mean_lambda_local", "mean_lambda_global"}  # the lower, the flatter


def flatness_sheet(runs: Sequence[Run], documents: Sequence[Documents]) -> Sheet:
    """One row per analysed run, mean ± standard deviation over seeds; the flattest of several is bold."""
    found = [(n, run.name, each) for n, (run, each) in enumerate(zip(runs, documents, strict=True)) if each]
    keys = [(what, key) for what, numbers in SHOWN.items() for key in numbers]
    columns = [_column([each for *_, each in found], what, key) for what, key in keys]
    rows = [[_coloured(n, name), *(column[i] for column in columns)] for i, (n, name, _) in enumerate(found)]
    titles = ["method", *(title for numbers in SHOWN.values() for title in numbers.values())]
    caption = (
        "What fedflat analyse measured, mean ± standard deviation over seeds; of what measures sharpness the lowest "
        "is bold. docs/analysis.md says what each number is."
    )
    return _sheet("flat", "Flatness", caption, titles, rows)


def _column(documents: Sequence[Documents], what: str, key: str) -> list[Cell]:
    """One number of every run: a dash where a run lacks it, nothing where all do."""
    found = [_over_seeds(each, what, key) for each in documents]
    known = [mean_std(values)[0] for values in found if values]
    low = min(known) if key in FLAT and len(known) > 1 else None
    return [Cell(_text(v), mean_std(v)[0] == low) if v else Cell("–" if known else "") for v in found]


def _over_seeds(documents: Documents, what: str, key: str) -> list[float]:
    """One number of a run, of every seed that has it."""
    seeds = documents.get(what, {}).get("seeds", {}).values()
    return [seed[key] for seed in seeds if seed.get(key) is not None]


def _text(values: list[float]) -> str:
    """Three digits of the mean, and of several values the standard deviation to the same place."""
    mean, std = mean_std(values)
    places = min(max(2 - math.floor(math.log10(abs(mean))), 0), 6) if mean else 2
    return f"{mean:.{places}f}" + (f" ± {std:.{places}f}" if len(values) > 1 else "")
