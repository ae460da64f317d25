"""fedflat analyse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.errors import UserError
from fedflat.flatness.finished_run import AnalysisSettings
from fedflat.runs.result import mean_std

SUMMARY_COLUMNS = {  # measurement: {number: heading}; landscapes and spectra are for figures
    "hessian": {"lambda1": "λ1", "lambda1_over_lambda5": "λ1/λ5", "trace": "trace"},
    "lpf": {"lpf": "LPF"},
    "discrepancy": {"discrepancy": "Δ_F"},
    "local": {"mean_lambda_local": "λ1 local", "mean_lambda_global": "λ1 global"},
    "path": {"gradient_norm": "‖∇F‖"},
    "barrier": {"barrier": "barrier to next"},
}


LOCAL_COLUMNS = {"discrepancy", "local", "local-landscape"}  # measured on clients' samples, whatever --on says


def print_summary(documents: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """One line per run; mean ± standard deviation over seeds."""
    table = Table("run", caption="mean ± standard deviation over seeds; λ1 local and global are means over clients")
    columns = [
        ("model_loss", "loss"),
        *((key, title) for numbers in SUMMARY_COLUMNS.values() for key, title in numbers.items()),
    ]
    rows = {run: _numbers(found) for run, found in documents.items()}
    columns = [(key, title) for key, title in columns if any(key in row for row in rows.values())]
    for _, title in columns:
        table.add_column(title, justify="right")
    for run, row in rows.items():
        table.add_row(run, *(row.get(key, "–") for key, _ in columns))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)


def _numbers(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What a run's line shows, by the number's name; seeds without the number do not count."""
    texts = {}
    for what, document in found.items():
        for key in [*(["model_loss"] if what not in LOCAL_COLUMNS else []), *SUMMARY_COLUMNS.get(what, {})]:
            values = [seed[key] for seed in document["seeds"].values() if seed.get(key) is not None]
            texts[key] = _text(*mean_std(values), len(values)) if values else "–"
    return texts


def _text(mean: float, std: float, count: int) -> str:
    return f"{mean:.4g} ± {std:.2g}" if count > 1 else f"{mean:.4g}"


def analyse_command(words: list[str]) -> None:
    """Measure the flatness of any set of runs."""
    runs, flags = split_positionals(words)
    settings = parse_options(AnalysisSettings, flags, "fedflat analyse RUN [RUN ...]")
    if not runs:
        raise UserError("analyse: name at least one run folder before the options")
    from fedflat.flatness.analyse import analyse_runs

    found = analyse_runs([Path(run) for run in runs], settings)
    print_summary(found.documents)
    for problem in found.problems:
        print(f"skipped: {problem}")
    print("results in analysis/ of each run's folder")
