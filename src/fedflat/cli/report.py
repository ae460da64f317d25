"""fedflat report: one HTML page about runs. fedflat reach: the communication it took to reach an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.catalogue import print_table
from fedflat.cli.outputs import check_file
from fedflat.core.metric import DEFAULT_TARGET
from fedflat.errors import NOT_SHOWN, UserError
from fedflat.options import NonNegative, Range
from fedflat.runs.result import CostToReach, bytes_per_round, cost_to_reach


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one self-contained HTML page about runs."""

    out: Path = Path("report.html")
    """The page to write."""
    target: NonNegative = DEFAULT_TARGET
    """Accuracy, or value of another main metric, for the column "rounds to ...": the first round that reaches it."""
    figures: Path | None = None
    """Folder for the page's figures as PDF and PNG, sized for a paper, and the differences between runs as LaTeX."""
    style: Literal["plain", "cvpr"] = "plain"
    """How figures look: sans serif, or as CVPR's LaTeX template with Times and markers."""
    columns: Annotated[int, Range(1, 2)] = 1
    """How many columns of the paper a figure spans."""
    tensorboard: Path | None = None
    """Folder for TensorBoard's event files (needs fedflat[tensorboard])."""
    label: tuple[str, ...] = ()
    """Names for runs, as RUN=TEXT; RUN is a folder or its name."""
    order: tuple[str, ...] = ()
    """Runs to list first, by folder or label; the others follow by method and hyper-parameters."""


def report_command(words: list[str]) -> None:
    """Run fedflat report RUN [RUN ...]."""
    runs, flags = split_positionals(words)
    options = parse_options(ReportOptions, flags, "fedflat report RUN [RUN ...]")
    if not runs:
        raise UserError(None, "report", "name at least one run folder")
    check_file(options.out, "report.html")
    from fedflat.reproduce import write_report

    labels = parse_labels(options.label, runs)
    for warning in write_report(
        runs,
        options.out,
        options.target,
        options.figures,
        options.tensorboard,
        labels,
        options.order,
        options.style,
        options.columns,
    ):
        print(warning)
    written = {"report": options.out, "figures": options.figures, "events": options.tensorboard}
    print(", ".join(f"{what} in {path}" for what, path in written.items() if path))


def parse_labels(words: Sequence[str], runs: Sequence[str]) -> dict[str, str]:
    """Return the text of each run from words RUN=TEXT; raise UserError for a word that does not begin with a run.

    Both parts may have = in them, so RUN is whatever names one of the runs.

    Args:
        words: the words.
        runs: the paths of the report.
    """
    from fedflat.runs.read import run_folders_in

    folders = [folder for path in runs for folder in run_folders_in(Path(path))]
    names = {str(folder) for folder in folders} | {folder.name for folder in folders}
    labels = {}
    for word in words:
        places = [n for n, character in enumerate(word) if character == "=" and word[:n].rstrip("/") in names]
        if not places or not word[places[-1] + 1 :]:
            raise UserError("label", word, f"must be RUN=TEXT; runs are {', '.join(folder.name for folder in folders)}")
        labels[word[: places[-1]].rstrip("/")] = word[places[-1] + 1 :]
    return labels


@dataclass(frozen=True)
class ReachOptions:
    """What runs needed to reach an accuracy, in rounds, bytes and models (FedGF, Table 4; FedGloSS, Table 5)."""

    target: NonNegative | None = None
    """Accuracy, or value of another main metric, to reach; unless given, that of the first run over the last tenth of
    its evaluations."""


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
    target = first.last10 if options.target is None else options.target
    first.main_metric.check_target("target", target)
    if not math.isfinite(target):
        raise UserError(
            "target", NOT_SHOWN, f"{name} diverged and reached no {first.metric}; say what is to be reached"
        )
    total = bytes_per_round(first, cohort) * first.rounds
    rows = [
        [run, *_reach_cells(cost_to_reach(result, cohort, target), total)] for run, (result, cohort) in finished.items()
    ]
    print_table(
        ["run", f"rounds to {target:{first.main_metric.form}}", "bytes", "models", f"of all that {name} sent"], rows
    )
    for problem in problems:
        print(f"skipped: {problem}")


def _reach_cells(cost: CostToReach | None, total: float) -> list[str]:
    """Return rounds, bytes, models and the share of `total` bytes as text; dashes if the accuracy was not reached."""
    if cost is None:
        return ["–"] * 4
    return [f"{cost.rounds:.1f}", f"{cost.bytes:,.0f}", f"{cost.models:,.1f}", f"{cost.bytes / total:.2f}"]
