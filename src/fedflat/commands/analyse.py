"""fedflat analyse."""

from __future__ import annotations

from pathlib import Path

from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.flatness.finished_run import AnalysisSettings


def analyse_command(words: list[str]) -> None:
    """Measure the flatness of any set of runs."""
    runs, flags = leading(words)
    settings = parse(AnalysisSettings, flags, "fedflat analyse RUN [RUN ...]")
    if not runs:
        raise UserError("analyse: name at least one run folder before the options")
    from fedflat.flatness.analyse import analyse_runs
    from fedflat.flatness.summary import print_summary

    found = analyse_runs([Path(run) for run in runs], settings)
    print_summary(found.documents)
    for problem in found.problems:
        print(f"skipped: {problem}")
    print("results in analysis/ of each run's folder")
