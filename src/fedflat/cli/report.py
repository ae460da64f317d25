"""fedflat report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.catalogue import _print_probes
from fedflat.cli.outputs import check_file
from fedflat.errors import UserError
from fedflat.options import Fraction
from fedflat.runs.result import CostToReach, bytes_per_round, cost_to_reach


@dataclass(frozen=True)
class ReachOptions:
    """What runs needed to reach an accuracy, in rounds, bytes and models (FedGF, Table 4; FedGloSS, Table 5)."""

    target: Fraction | None = None
    """Accuracy to reach; unless given, that of the first run over the last tenth of its evaluations."""


def reach_command(words: list[str]) -> None:
    """fedflat reach RUN [RUN ...]."""
    paths, flags = split_positionals(words)
    options = parse_options(ReachOptions, flags, "fedflat reach RUN [RUN ...]")
    from fedflat.runs.read import read_stored_runs

    runs, problems = read_stored_runs([Path(path) for path in paths])
    problems += [f"{run.name}: unfinished" for run in runs if not run.result]
    finished = {run.name: (run.result, int(run.config["cohort"])) for run in runs if run.result}
    if not finished:
        raise UserError("; ".join(["reach: name the folders of complete runs, FedAvg's first", *problems]))
    name, (first, cohort) = next(iter(finished.items()))
    target = first.last10_accuracy if options.target is None else options.target
    whole = bytes_per_round(first, cohort) * first.rounds
    rows = [
        [run, *_reach_cells(cost_to_reach(result, size, target), whole)] for run, (result, size) in finished.items()
    ]
    _print_probes(["run", f"rounds to {target:.2%}", "bytes", "models", f"of all that {name} sent"], rows)
    for problem in problems:
        print(f"skipped: {problem}")


def _reach_cells(found: CostToReach | None, whole: float) -> list[str]:
    """Rounds, bytes, models and the part of `whole`, as text."""
    if found is None:
        return ["–"] * 4
    return [f"{found.rounds:.1f}", f"{found.bytes:,.0f}", f"{found.models:,.1f}", f"{found.bytes / whole:.2f}"]


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
    runs, flags = split_positionals(words)
    options = parse_options(ReportOptions, flags, "fedflat report RUN [RUN ...]")
    if not runs:
        raise UserError("report: name at least one run folder")
    check_file(options.out, "report.html")
    from fedflat.public import write_report

    problems = write_report(runs, options.out, options.target, options.figures, options.tensorboard)
    for problem in problems:
        print(problem)
    made = {"report": options.out, "figures": options.figures, "events": options.tensorboard}
    print(", ".join(f"{what} in {path}" for what, path in made.items() if path))
