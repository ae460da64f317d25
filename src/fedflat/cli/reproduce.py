"""fedflat reproduce."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.outputs import check_file, refuse_file
from fedflat.engine.processes import find_rank
from fedflat.errors import UserError, near_miss
from fedflat.options import Count, Index, check_writable
from fedflat.reproduce.cells import TABLES, find_table
from fedflat.reproduce.render import FORMATS, as_text, table_rows
from fedflat.reproduce.results import StoredResults
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.reproduce.train import (
    BudgetSpent,
    ReproduceRequest,
    TooLong,
    TrainingJob,
    data_prepared,
    duration_text,
    estimate_seconds,
    group_jobs,
    train_group,
    training_jobs,
)
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import software_versions


def list_tables(request: ReproduceRequest, form: str = "text") -> None:
    """Print every table with what is done, missing and out of reach."""
    stored = request.stored()
    lines = [(name, table.title, *_counts(table, stored, request)) for name, table in TABLES.items()]
    headings = ("table", "about", "cells", "done", "missing", "no data", "unavailable")
    print(FORMATS[form](lines, headings) if form in FORMATS else as_text(lines, headings))


def _counts(table: PaperTable, stored: StoredResults, request: ReproduceRequest) -> tuple[str, ...]:
    """How many cells there are, are done, can be trained, lack data, and cannot be trained."""
    done = [cell for cell in table.cells if (ours := stored.ours(cell)) and stored.comparable(cell, ours)]
    rest = [cell for cell in table.cells if cell not in done]
    never = [cell for cell in rest if cell.unavailable]
    bare = [cell for cell in rest if not cell.unavailable and not data_prepared(cell, request.dataset)]
    numbers = (len(table.cells), len(done), len(rest) - len(never) - len(bare), len(bare), len(never))
    return tuple(map(str, numbers))


def reproduce_tables(
    names: Sequence[str],
    request: ReproduceRequest,
    patterns: Sequence[str],
    variant: str,
    show: bool = False,
    form: str = "text",
) -> None:
    """Train what is missing of the chosen cells, unless `show`, and print them table by table."""
    chosen = choose_cells([find_table(name) for name in dict.fromkeys(names)], patterns, variant)
    if not show:
        every = [cell for _, cells in chosen for cell in cells]
        train_missing(training_jobs(every, request.stored(), request), request)
        _tell_absent(every, request)
    stored = request.stored()
    for table, cells in chosen:
        lines = table_rows(table, cells, stored, request)
        print(
            FORMATS[form](lines)
            if form in FORMATS
            else as_text(lines, title=_table_title(table, chosen), note=table.note)
        )


def _tell_absent(cells: Sequence[TableCell], request: ReproduceRequest) -> None:
    """Name the data sets without which cells were not trained."""
    names = dict.fromkeys(
        c.setting["dataset"] for c in cells if not c.unavailable and not data_prepared(c, request.dataset)
    )
    for name in names:
        print(f"{name} is not prepared, so its cells were not trained: fedflat data prepare {name}", file=sys.stderr)


def _table_title(table: PaperTable, chosen: Sequence[object]) -> str:
    """With the table's name where there are several."""
    return f"{table.name}: {table.title}" if len(chosen) > 1 else table.title


def choose_cells(
    tables: Sequence[PaperTable], patterns: Sequence[str], variant: str = ""
) -> list[tuple[PaperTable, list[TableCell]]]:
    """Tables with their cells that match; raises UserError where none does."""
    names = ", ".join(table.name for table in tables)
    known = sorted({cell.variant for table in tables for cell in table.variants})
    if variant and variant not in known:
        allowed = f"variants are {', '.join(known)}" if known else "there are none"
        raise UserError(f"--variant {variant}: not a variant of {names}{near_miss(variant, known)}; {allowed}")
    pools = [[c for c in (table.variants if variant else table.cells) if c.variant == variant] for table in tables]
    found = [[cell for cell in pool if cell.matches(patterns)] for pool in pools]
    if not any(found):
        example = " ".join(next(pool for pool in pools if pool)[0].words)
        raise UserError(f"--cells {' '.join(patterns)}: no cell of {names} matches; one of them is {example}")
    return [(table, cells) for table, cells in zip(tables, found, strict=True) if cells]


def train_missing(todo: Sequence[TrainingJob], request: ReproduceRequest) -> None:
    """Group after group, those first that end in time; then as much of the others as there is time for."""
    queue, late = group_jobs(todo), list[list[TrainingJob]]()
    while queue or late:
        first = bool(queue)
        group = queue.pop(0) if first else late.pop(0)
        others = first and bool(queue or late)
        needed = estimate_seconds(group, request, request.stored(), software_versions()["hardware"])
        print(_announce(group, needed), flush=True)
        try:
            if needed and others and not request.fits(needed):
                raise TooLong(f"put off, {duration_text(request.left())} left")
            train_group(group, request, lambda text: print(text, flush=True), others)
        except TooLong as reason:
            print(f"{group[0].label}: {reason}", flush=True)
            late.append(group)
        except BudgetSpent as reason:
            print(f"{group[0].label}: {reason}", flush=True)
            return


def _announce(group: Sequence[TrainingJob], needed: float | None) -> str:
    """What is about to be trained, and how long it may take."""
    together, rounds = sum(len(job.experiment.seeds) for job in group), group[0].experiment.rounds
    time = f"about {duration_text(needed)}" if needed else "time measured on its first rounds"
    return f"{group[0].label}: {_many(len(group), 'partition')}, {_many(together, 'run')} of {rounds} rounds, {time}"


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number > 1)}"


def write_page(request: ReproduceRequest, out: Path) -> None:
    """Write the page about all tables and claims."""
    from fedflat.reproduce.render import reproduction_page

    reproduction_page(request, out)
    print(f"written: {out}")


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
    names, flags = split_positionals(words)
    options = parse_options(ReproduceOptions, flags, PROG)
    _check(options, names)
    if find_rank(options.engine).size > 1:
        raise UserError("reproduce: trains in one process; do not start it with torchrun")

    from fedflat.reproduce.train import ReproduceRequest

    names_of = ("results", "runs", "seeds", "rounds", "dataset", "engine", "device", "precision", "data_note")
    deadline = began + _seconds(options.budget)
    request = ReproduceRequest(**{name: getattr(options, name) for name in names_of}, deadline=deadline)
    form = next((name for name in FORMS if getattr(options, name)), "text")
    if names:
        reproduce_tables(names, request, options.cells, options.variant, options.show, form)
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
