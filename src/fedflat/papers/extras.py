"""Measures of the final models that tables ask for besides accuracies; taken from finished run folders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fedflat.errors import UserError
from fedflat.papers.cells import alike, experiment, key
from fedflat.papers.table import Cell

Device = Literal["auto", "cpu", "cuda"]


Found = dict[int, dict[str, float | None]]  # by seed and measure


ANALYSED = {  # measure → what `fedflat analyse` measures, and the name of the number there
    "lambda1": ("hessian", "lambda1"),
    "ratio": ("hessian", "lambda1_over_lambda5"),
    "lpf": ("lpf", "lpf"),
    "discrepancy": ("discrepancy", "discrepancy"),
    "lambda-local": ("local", "mean_lambda_local"),
    "lambda-global": ("local", "mean_lambda_global"),
}


PERSONAL = {"tuned": "-FT", "knn": "kNN-Per", "alone": "local-only"}


FREE = ("drift", "norm", "fedgf", "fedgloss")  # probes that cost nothing, and are taken whenever a table asks for them


def wanted(cells: Sequence[Cell]) -> set[str]:
    """Measures of final models that these cells ask for, and λ1, which costs little, if any cell trained alike does."""
    cheap = {"lambda1"} & {cell.measure for cell in alike()[key(experiment(cells[0]))]}
    return cheap | {cell.measure for cell in cells if cell.measure in ANALYSED or _scheme(cell.measure) in PERSONAL}


def probes(cells: Sequence[Cell]) -> set[str]:
    """Probes that these cells ask for, and the free ones for which any cell trained alike asks."""
    every = {_probe(cell.measure) for cell in alike()[key(experiment(cells[0]))]}
    return {_probe(cell.measure) for cell in cells if _probe(cell.measure)} | (every & set(FREE))


def _probe(measure: str) -> str:
    """drift for drift.global_local, '' for what no probe measures."""
    return measure.partition(".")[0] if "." in measure else ""


def _scheme(measure: str) -> str:
    return measure.partition("-")[0]


def measure(folder: Path, measures: Collection[str], seeds: Iterable[int], device: Device) -> Found:
    """The measures of every seed; None where a model cannot be measured."""
    found: Found = {seed: dict.fromkeys(sorted(measures)) for seed in seeds}
    with suppress(UserError):  # models that diverged have no curvature
        if analysed := [m for m in measures if m in ANALYSED]:
            _analyse(folder, analysed, device, found)
        if personal := [m for m in measures if m not in ANALYSED]:
            _personalise(folder, personal, found)
    return found


def _analyse(folder: Path, measures: Collection[str], device: Device, found: Found) -> None:
    """λ1 by power iteration, as FedGloSS has it, unless λ5 is wanted too."""
    from fedflat.flatness import analyse_runs
    from fedflat.flatness.finished_run import AnalysisSettings

    what: Any = tuple(dict.fromkeys(ANALYSED[m][0] for m in measures))
    five = "ratio" in measures
    settings = AnalysisSettings(
        what=what, solver="lanczos" if five else "power", top=5 if five else 1, probes=2, device=device
    )
    (documents,) = analyse_runs([folder], settings).documents.values()
    for measure, (name, number) in ((m, ANALYSED[m]) for m in measures):
        for seed, numbers in documents.get(name, {}).get("seeds", {}).items():
            found[int(seed)][measure] = numbers[number]


def _personalise(folder: Path, measures: Collection[str], found: Found) -> None:
    """Mean accuracies of clients, in percent."""
    from fedflat.personal.fine_tuning import personalise

    rows = personalise(folder, epochs=(1, 5), alone="alone" in measures)
    for measure in measures:
        scheme, _, epochs = measure.partition("-")
        fits: Callable[[Any], bool] = lambda row: PERSONAL[scheme] in row.scheme and epochs in ("", str(row.epochs))  # noqa: E731
        for row in filter(fits, rows):
            for seed, clients in row.clients.items():
                found[seed][measure] = 100 * sum(clients.values()) / len(clients)
