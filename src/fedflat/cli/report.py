"""fedflat report: one HTML page about runs. fedflat reach: the communication it took to reach an accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.catalogue import print_table
from fedflat.cli.outputs import check_file
from fedflat.errors import UserError
from fedflat.options import Fraction
from fedflat.runs.result import CostToReach, bytes_per_round, cost_to_reach


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one self-contained HTML page about runs."""

    out: Path = Path("report.html")
    """The page to write."""
    target: Fraction = 0.8
    """Accuracy for the column "rounds to ...": the first round that reaches it."""
    figures: Path | None = None
    """Folder for the page's figures as PDF and PNG, sized for a column of a paper."""
    tensorboard: Path | None = None
    """Folder for TensorBoard's event files (needs fedflat[tensorboard])."""


def report_command(words: list[str]) -> None:
    """Run fedflat report RUN [RUN ...]."""
    runs, flags = split_positionals(words)
    options = parse_options(ReportOptions, flags, "fedflat report RUN [RUN ...]")
    if not runs:
        raise UserError(None, "report", "name at least one run folder")
    check_file(options.out, "report.html")
    from fedflat.reproduce import write_report

    for warning in write_report(runs, options.out, options.target, options.figures, options.tensorboard):
        print(warning)
    written = {"report": options.out, "figures": options.figures, "events": options.tensorboard}
    print(", ".join(f"{what} in {path}" for what, path in written.items() if path))


@dataclass(frozen=True)
class ReachOptions:
    """What runs needed to reach an accuracy, in rounds, bytes and models (FedGF, Table 4; FedGloSS, Table 5)."""

    target: Fraction | None = None
    """Accuracy to reach; unless given, that of the first run over the last tenth of its evaluations."""


def reach_command(words: list[str]) -> None:
    """Run fedflat reach RUN [RUN ...]."""
    paths, flags = split_positionals(words)
    options = parse_options(ReachOptions, flags, "fedflat reach RUN [RUN ...]")
    from fedflat.runs.read import read_stored_runs

    runs, problems = read_stored_runs([Path(path) for path in paths])
    problems += [f"{run.name}: unfinished" for run in runs if not run.result]
    finished = {run.name: (run.result, run.config["cohort"]) for run in runs if run.result}
    if not finished:
        raise UserError(None, "reach", "; ".join(["name the folders of complete runs, FedAvg's first", *problems]))
    name, (first, cohort) = next(iter(finished.items()))
    target = first.last10_accuracy if options.target is None else options.target
    total = bytes_per_round(first, cohort) * first.rounds
    rows = [
        [run, *_reach_cells(cost_to_reach(result, cohort, target), total)] for run, (result, cohort) in finished.items()
    ]
    print_table(["run", f"rounds to {target:.2%}", "bytes", "models", f"of all that {name} sent"], rows)
    for problem in problems:
        print(f"skipped: {problem}")


def _reach_cells(cost: CostToReach | None, total: float) -> list[str]:
    """Return rounds, bytes, models and the share of `total` bytes as text; dashes if the accuracy was not reached."""
    if cost is None:
        return ["–"] * 4
    return [f"{cost.rounds:.1f}", f"{cost.bytes:,.0f}", f"{cost.models:,.1f}", f"{cost.bytes / total:.2f}"]
