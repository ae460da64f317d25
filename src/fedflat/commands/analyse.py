"""fedflat analyse."""

from __future__ import annotations

from pathlib import Path

from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.flatness.settings import Settings


def analyse_command(words: list[str]) -> None:
    """Measure the flatness of any set of runs."""
    runs, flags = leading(words)
    settings = parse(Settings, flags, "fedflat analyse RUN [RUN ...]")
    if not runs:
        raise UserError("analyse: name at least one run folder before the options")
    from fedflat.flatness.analyse import analyse
    from fedflat.flatness.summary import print_summary

    found = analyse([Path(run) for run in runs], settings)
    print_summary(found.documents)
    for problem in found.problems:
        print(f"skipped: {problem}")
    print("results in analysis/ of each run's folder")
