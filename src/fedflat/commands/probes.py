"""fedflat probes and reach."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path

from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.options import Fraction
from fedflat.probes import PROBES
from fedflat.probes.probe import Probe
from fedflat.runs.result import CostToReach, bytes_per_round, cost_to_reach


@dataclass(frozen=True)
class ProbesOptions:
    """List what can be measured during training, and what it costs."""

    json: bool = False
    """Print JSON instead of a table."""


def probes_command(words: list[str]) -> None:
    """Every probe with what it measures and costs."""
    options = parse(ProbesOptions, words, "fedflat probes")
    rows = [describe(name, probe) for name, probe in PROBES.items()]
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print(["probe", "measures", "costs"], [[row["name"], row["summary"], row["costs"]] for row in rows])


def describe(name: str, probe: Probe) -> dict[str, str]:
    """One probe as its docstring tells: first line, formulas between, and the last paragraph, "Costs …"."""
    text, _, costs = (inspect.getdoc(probe) or "").rpartition("\n\nCosts ")
    summary, _, formulas = text.partition("\n\n")
    return {"name": name, "summary": summary, "formulas": formulas, "costs": " ".join(costs.split()).rstrip(".")}


@dataclass(frozen=True)
class ReachOptions:
    """What runs needed to reach an accuracy, in rounds, bytes and models (FedGF, Table 4; FedGloSS, Table 5)."""

    target: Fraction | None = None
    """Accuracy to reach; unless given, that of the first run over the last tenth of its evaluations."""


def reach_command(words: list[str]) -> None:
    """fedflat reach RUN [RUN ...]."""
    paths, flags = leading(words)
    options = parse(ReachOptions, flags, "fedflat reach RUN [RUN ...]")
    from fedflat.runs.read import read_stored_runs

    runs, problems = read_stored_runs([Path(path) for path in paths])
    problems += [f"{run.name}: unfinished" for run in runs if not run.result]
    finished = {run.name: (run.result, int(run.config["cohort"])) for run in runs if run.result}
    if not finished:
        raise UserError("; ".join(["reach: name the folders of complete runs, FedAvg's first", *problems]))
    name, (first, cohort) = next(iter(finished.items()))
    target = first.last10_accuracy if options.target is None else options.target
    whole = bytes_per_round(first, cohort) * first.rounds
    rows = [[run, *_cells(cost_to_reach(result, size, target), whole)] for run, (result, size) in finished.items()]
    _print(["run", f"rounds to {target:.2%}", "bytes", "models", f"of all that {name} sent"], rows)
    for problem in problems:
        print(f"skipped: {problem}")


def _cells(found: CostToReach | None, whole: float) -> list[str]:
    """Rounds, bytes, models and the part of `whole`, as text."""
    if found is None:
        return ["–"] * 4
    return [f"{found.rounds:.1f}", f"{found.bytes:,.0f}", f"{found.models:,.1f}", f"{found.bytes / whole:.2f}"]


def _print(headings: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table, highlight=False)
