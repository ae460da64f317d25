"""fedflat report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.commands.outputs import check_file
from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.options import Fraction


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one self-contained HTML page about runs."""

    out: Path = Path("report.html")
    """The page to write."""
    target: Fraction = 0.8
    """Accuracy whose first reaching is counted in rounds."""
    figures: Path | None = None
    """Folder for the page's figures as PDF and PNG, sized for a column of a paper."""
    tensorboard: Path | None = None
    """Folder for TensorBoard's event files (needs fedflat[tensorboard])."""


def report_command(words: list[str]) -> None:
    """One page about any set of runs."""
    runs, flags = leading(words)
    options = parse(ReportOptions, flags, "fedflat report RUN [RUN ...]")
    if not runs:
        raise UserError("report: name at least one run folder")
    check_file(options.out, "report.html")
    from fedflat.public import write_report

    problems = write_report(runs, options.out, options.target, options.figures, options.tensorboard)
    for problem in problems:
        print(problem)
    made = {"report": options.out, "figures": options.figures, "events": options.tensorboard}
    print(", ".join(f"{what} in {path}" for what, path in made.items() if path))
