"""The table that `fedflat analyse` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.runs.result import mean_std

SHOWN = {  # measurement: {number: heading}; landscapes and spectra are for figures
    "hessian": {"lambda1": "λ1", "lambda1_over_lambda5": "λ1/λ5", "trace": "trace"},
    "lpf": {"lpf": "LPF"},
    "discrepancy": {"discrepancy": "Δ_F"},
    "local": {"mean_lambda_local": "λ1 local", "mean_lambda_global": "λ1 global"},
    "path": {"gradient_norm": "‖∇F‖"},
    "barrier": {"barrier": "barrier to next"},
}


LOCAL = {"discrepancy", "local", "local-landscape"}  # measured on clients' samples, whatever --on says


def print_summary(documents: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """One line per run; mean ± standard deviation over seeds."""
    table = Table("run", caption="mean ± standard deviation over seeds; λ1 local and global are means over clients")
    columns = [("model_loss", "loss"), *((key, title) for numbers in SHOWN.values() for key, title in numbers.items())]
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
        for key in [*(["model_loss"] if what not in LOCAL else []), *SHOWN.get(what, {})]:
            values = [seed[key] for seed in document["seeds"].values() if seed.get(key) is not None]
            texts[key] = _text(*mean_std(values), len(values)) if values else "–"
    return texts


def _text(mean: float, std: float, count: int) -> str:
    return f"{mean:.4g} ± {std:.2g}" if count > 1 else f"{mean:.4g}"
