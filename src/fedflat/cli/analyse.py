"""fedflat analyse: measure how flat the models of finished runs are, and print a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.errors import UserError
from fedflat.flatness import AnalysisSettings, analyse
from fedflat.report.comparison import SUMMARY_COLUMNS, folder_name
from fedflat.report.run_labels import label_runs
from fedflat.runs.read import read_stored_runs
from fedflat.runs.result import mean_std

ON_CLIENT_SAMPLES = {"discrepancy", "local", "local-landscape"}  # their model_loss is not on the samples of --on


def print_summary(documents: Mapping[str, Mapping[str, Mapping[str, Any]]], labels: Mapping[str, str]) -> None:
    """Print one line for each run with the mean ± standard deviation of its numbers over seeds.

    Args:
        documents: the documents of `fedflat.flatness.Analysis`, by run and measurement.
        labels: the runs' labels by the names in `documents`.
    """
    columns = {"model_loss": "loss"}
    for headings in SUMMARY_COLUMNS.values():
        columns |= headings
    rows = {labels[run]: _row_cells(measurements) for run, measurements in documents.items()}
    columns = {key: heading for key, heading in columns.items() if any(key in row for row in rows.values())}
    clients = "; λ1 local and global are means over clients" if "λ1 local" in columns.values() else ""
    table = Table("run", caption=f"mean ± standard deviation over seeds{clients}")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for run, row in rows.items():
        table.add_row(run, *(row.get(key, "–") for key in columns))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)


def report_labels(names: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, str]:
    """Return the labels that the report gives to runs.

    Args:
        names: the runs' folders or, of folders of equal names, their paths.
        paths: run folders, or folders of run folders.
    """
    runs = label_runs(read_stored_runs(paths)[0])
    found = {name: run.name for run in runs for name in (folder_name(run), str(run.path))}
    return {name: found.get(name, name) for name in names}


def _row_cells(measurements: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells of a run's line by the name of the number; seeds without the number do not count."""
    cells = {}
    for name, document in measurements.items():
        for key in [*([] if name in ON_CLIENT_SAMPLES else ["model_loss"]), *SUMMARY_COLUMNS.get(name, {})]:
            values = [seed[key] for seed in document["seeds"].values() if seed.get(key) is not None]
            cells[key] = _cell(*mean_std(values), len(values)) if values else "–"
    return cells


def _cell(mean: float, std: float, count: int) -> str:
    return f"{mean:.4g} ± {std:.2g}" if count > 1 else f"{mean:.4g}"


def analyse_command(words: list[str]) -> None:
    """Run fedflat analyse RUN [RUN ...]."""
    runs, flags = split_positionals(words)
    settings = parse_options(AnalysisSettings, flags, "fedflat analyse RUN [RUN ...]")
    if not runs:
        raise UserError(None, "analyse", "name at least one run folder before the options")
    paths = [Path(run) for run in runs]
    analysis = analyse(paths, settings)
    print_summary(analysis.documents, report_labels(analysis.documents, paths))
    for problem in analysis.problems:
        print(f"skipped: {problem}")
    print("results in analysis/ of each run's folder")
