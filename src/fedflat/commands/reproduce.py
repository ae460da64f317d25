"""fedflat reproduce."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedflat.commands.outputs import check_file, refuse_file
from fedflat.commands.parse import leading, parse
from fedflat.engine.processes import find_rank
from fedflat.errors import UserError
from fedflat.options import Count, Index, check_writable
from fedflat.runs.experiment import Experiment

PROG = "fedflat reproduce [TABLE ...]"


FORMS = ("markdown", "latex", "csv")


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Train the cells of papers' tables that are missing and print them with our numbers; without TABLE, list all."""

    cells: tuple[str, ...] = ()
    """Only cells whose words match these patterns in order, for example "cifar10 lda-0.1 *"; several may be given."""
    variant: str = ""
    """A variant of the cells, such as released; the paper's own settings unless given."""
    seeds: tuple[Index, ...] = (0, 1, 2)
    """Seeds; those that are stored are not trained again."""
    rounds: Count | None = None
    """Fewer rounds than the paper's, for a try; there is no verdict then."""
    dataset: str | None = None
    """Another data set, such as digits, for a try; there is no verdict then."""
    budget: str | None = None
    """Time that may be used, such as 90s, 20m or 1.5h; what ends within it goes first, the rest continues next time."""
    engine: Literal["auto", "sequential", "batched"] = "auto"
    """How clients train (fedflat run --help)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the models; auto is tf32 on a GPU, fp32 on a CPU."""
    results: Path = Path("results")
    """Folder of the stored results."""
    runs: Path = Path("runs/reproduce")
    """Folder for run folders, from which interrupted training continues."""
    data_note: str = ""
    """Words about the data, stored with the results, such as "CIFAR-10 (JPEG)"."""
    show: bool = False
    """Train nothing: print the tables from what is stored, or write the page about all tables to --out."""
    out: Path = Path("docs/reproduction.md")
    """The page that --show writes."""
    markdown: bool = False
    """Print the table in Markdown."""
    latex: bool = False
    """Print the table in LaTeX."""
    csv: bool = False
    """Print the table as comma-separated values."""


def reproduce_command(words: list[str]) -> None:
    """fedflat reproduce."""
    began = time.monotonic()
    names, flags = leading(words)
    options = parse(ReproduceOptions, flags, PROG)
    _check(options, names)
    if find_rank(options.engine).size > 1:
        raise UserError("reproduce: trains in one process; do not start it with torchrun")
    from fedflat.papers.command import list_tables, some_tables, write_page
    from fedflat.reproduce.train import ReproduceRequest

    names_of = ("results", "runs", "seeds", "rounds", "dataset", "engine", "device", "precision", "data_note")
    deadline = began + _seconds(options.budget)
    request = ReproduceRequest(**{name: getattr(options, name) for name in names_of}, deadline=deadline)
    form = next((name for name in FORMS if getattr(options, name)), "text")
    if names:
        some_tables(names, request, options.cells, options.variant, options.show, form)
    elif options.show:
        write_page(request, options.out)
    else:
        list_tables(request, form)


def _check(options: ReproduceOptions, names: list[str]) -> None:
    """Raise UserError for options that contradict each other or would do nothing."""
    Experiment(seeds=options.seeds).check()
    forms = [f"--{name}" for name in FORMS if getattr(options, name)]
    if len(forms) > 1:
        raise UserError(f"{' '.join(forms)}: choose one form")
    alone = [f"--{name}" for name in ("cells", "variant") if getattr(options, name) and not names]
    if alone:
        raise UserError(f"{alone[0]}: chooses cells of a TABLE, and none is named; fedflat reproduce lists them")
    _check_paths(options, names)


def _check_paths(options: ReproduceOptions, names: list[str]) -> None:
    """Raise UserError for paths that cannot be read or written, before anything is trained."""
    refuse_file("--results", options.results)
    if names and not options.show:
        check_writable("--results", options.results, options.results)
    if options.show and not names:
        check_file(options.out, "reproduction.md")
        if not options.results.is_dir():
            raise UserError(f"--results {options.results}: no such folder, and the page is written from stored results")


def _seconds(budget: str | None) -> float:
    """A time such as 90s, 20m or 1.5h."""
    if budget is None:
        return float("inf")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget)
    if not found or not float(found[1]):
        raise UserError(f"--budget {budget}: must be a time such as 90s, 20m or 1.5h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
