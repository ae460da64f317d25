"""fedflat reproduce: list, train and print the tables of the papers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.outputs import check_file, check_folder, check_writable
from fedflat.engine.ranks import find_rank
from fedflat.errors import NOT_SHOWN, UserError, near_miss
from fedflat.options import Count, Index
from fedflat.reproduce.cells import TABLES, find_table
from fedflat.reproduce.pages import write_pages
from fedflat.reproduce.queue import QUEUE, claim_group
from fedflat.reproduce.render import FORMATS, as_text, table_rows
from fedflat.reproduce.results import StoredResults, default_results, delete_jpeg
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.reproduce.train import (
    BudgetSpent,
    ReproduceRequest,
    TrainingJob,
    data_prepared,
    group_jobs,
    train_group,
    training_jobs,
)
from fedflat.runs.experiment import Experiment

ChosenCells = list[tuple[PaperTable, list[TableCell]]]


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Train the missing cells of papers' tables and print them with our numbers; without TABLE, list all tables."""

    cells: tuple[str, ...] = ()
    """Only cells whose words match these patterns in order, for example "cifar10 lda-0.1 *"; several may be given."""
    variant: str = ""
    """A variant of the cells, such as released; the paper's own settings unless given."""
    seeds: tuple[Index, ...] = (0, 1, 2)
    """Seeds; those that are stored are not trained again."""
    queue: bool = False
    """Train what is most useful next, over all tables, instead of a TABLE; with --show, list it.
    Several processes may do so side by side. The queue has seeds of its own."""
    rounds: Count | None = None
    """Fewer rounds than the paper's, for a try; there is no verdict then."""
    dataset: str | None = None
    """Another data set, such as digits, for a try; there is no verdict then."""
    budget: str | None = None
    """Time that may be used, such as 90s, 20m or 1.5h; training then stops, and the same command continues it."""
    engine: Literal["auto", "sequential", "batched"] = "auto"
    """How clients train (fedflat run --help)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the models; auto is tf32 on a GPU, fp32 on a CPU."""
    results: Path | None = None
    """Folder of the stored results; unless given, results/ of the checkout that this code runs from, or of the current
    folder if the package is installed without one."""
    runs: Path = Path("runs/reproduce")
    """Folder for run folders, from which interrupted training continues."""
    data_note: str = ""
    """Words about the data, stored with the results; "cifar10 (original pixels)" and so on unless given. JPEG is added
    if the data were prepared from JPEG files."""
    delete_jpeg: bool = False
    """Delete all stored results that were trained on JPEG images."""
    show: bool = False
    """Train nothing: print the tables from what is stored, or write the page about all tables to --out."""
    out: Path | None = None
    """The first page that --show writes, docs/reproduction.md beside the results unless given; pages about each paper
    are written beside it."""
    markdown: bool = False
    """Print the table in Markdown."""
    latex: bool = False
    """Print the table in LaTeX."""
    csv: bool = False
    """Print the table as comma-separated values."""


def reproduce_command(words: list[str]) -> None:
    """Run fedflat reproduce."""
    began = time.monotonic()
    names, flags = split_positionals(words)
    options = parse_options(ReproduceOptions, flags, "fedflat reproduce [TABLE ...]")
    results = options.results or default_results()
    out = options.out or results.parent / "docs" / "reproduction.md"
    options = replace(options, results=results, out=out)
    _check(options, names)
    if find_rank(options.engine).size > 1:
        raise UserError(None, "reproduce", "trains in one process; do not start it with torchrun")
    fields = ("results", "runs", "seeds", "rounds", "dataset", "engine", "device", "precision", "data_note")
    deadline = began + _seconds(options.budget)
    request = ReproduceRequest(**{name: getattr(options, name) for name in fields}, deadline=deadline)
    form = next((name for name in FORMATS if getattr(options, name)), "text")
    if options.delete_jpeg:
        print(f"deleted: {_plural(len(delete_jpeg(request.results)), 'file')} in {request.results}")
    elif options.queue:
        list_queue(request, form) if options.show else train_queue(request)
    elif names:
        reproduce_tables(names, request, options.cells, options.variant, options.show, form)
    elif options.show:
        print(f"written: {', '.join(map(str, write_pages(request, out)))}")
    else:
        list_tables(request, form)


def _check(options: ReproduceOptions, names: list[str]) -> None:
    """Raise UserError for options that contradict each other or have no effect."""
    Experiment(seeds=options.seeds).check()
    forms = [f"--{name}" for name in FORMATS if getattr(options, name)]
    if len(forms) > 1:
        raise UserError(None, " ".join(forms), "choose one form")
    for name in ("queue", "delete_jpeg"):
        if getattr(options, name) and names:
            raise UserError(name, NOT_SHOWN, "is about all tables; name none")
    for name in ("cells", "variant"):
        if getattr(options, name) and not names:
            raise UserError(
                name, NOT_SHOWN, "chooses cells of a TABLE, and none is named; fedflat reproduce lists the tables"
            )
    _check_paths(options, names)


def _check_paths(options: ReproduceOptions, names: list[str]) -> None:
    """Raise UserError for paths that cannot be read or written, before anything is trained."""
    assert options.results
    assert options.out
    check_folder("results", options.results)
    if (names or options.queue) and not options.show:
        check_writable("results", options.results, options.results)
    if options.show and not names and not options.queue:
        check_file(options.out, "reproduction.md")
        if not options.results.is_dir():
            raise UserError("results", options.results, "no such folder; the page is written from stored results")


def _seconds(budget: str | None) -> float:
    """Return the seconds of a time such as 90s, 20m or 1.5h; infinity if none is given."""
    if budget is None:
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget)
    if not match or not float(match[1]):
        raise UserError("budget", budget, "must be a time such as 90s, 20m or 1.5h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def list_tables(request: ReproduceRequest, form: str = "text") -> None:
    """Print all tables with the number of cells that are done, missing and not available."""
    stored = request.stored()
    rows = [(name, table.title, *_counts(table, stored, request)) for name, table in TABLES.items()]
    headings = ("table", "about", "cells", "done", "missing", "no data", "unavailable")
    print(FORMATS.get(form, as_text)(rows, headings))
    if form == "text":
        print(f"stored results: {request.results}")


def list_queue(request: ReproduceRequest, form: str = "text") -> None:
    """Print the entries of the queue with the number of runs that are still missing."""
    stored, rows = request.stored(), []
    for place, entry in enumerate(QUEUE, 1):
        jobs = training_jobs(entry.find_cells(), stored, replace(request, seeds=entry.seeds), prepared_only=False)
        rows.append((str(place), entry.text, str(sum(len(job.experiment.seeds) for job in jobs))))
    print(FORMATS.get(form, as_text)(rows, ("place", "fedflat reproduce", "runs to train")))


def train_queue(request: ReproduceRequest) -> None:
    """Train the entries of the queue one after another, until the deadline has passed."""
    for entry in QUEUE:
        if not train_missing(entry.find_cells(), replace(request, seeds=entry.seeds)):
            return


def _counts(table: PaperTable, stored: StoredResults, request: ReproduceRequest) -> tuple[str, ...]:
    """Return the number of cells, and of those that are done, can be trained, lack data and are not available."""
    done = [cell for cell in table.cells if (ours := stored.ours(cell)) and stored.comparable(cell, ours)]
    rest = [cell for cell in table.cells if cell not in done]
    unavailable = [cell for cell in rest if cell.unavailable]
    no_data = [cell for cell in rest if not cell.unavailable and not data_prepared(cell, request.dataset)]
    missing = len(rest) - len(unavailable) - len(no_data)
    return tuple(map(str, (len(table.cells), len(done), missing, len(no_data), len(unavailable))))


def reproduce_tables(
    names: Sequence[str],
    request: ReproduceRequest,
    patterns: Sequence[str],
    variant: str,
    show: bool = False,
    form: str = "text",
) -> None:
    """Train the missing cells of tables and print the tables.

    Args:
        names: the tables' names.
        request: how cells are trained, and where results are stored.
        patterns: only cells that match one of these; all if empty.
        variant: variant of the cells; '' for the paper's settings.
        show: print only, train nothing.
        form: text, or a key of FORMATS.
    """
    chosen = choose_cells([find_table(name) for name in dict.fromkeys(names)], patterns, variant)
    if not show:
        cells = [cell for _, cells in chosen for cell in cells]
        train_missing(cells, request)
        _warn_of_missing_data(cells, request)
    stored = request.stored()
    for table, cells in chosen:
        rows = table_rows(table, cells, stored, request)
        title = f"{table.name}: {table.title}" if len(chosen) > 1 else table.title
        print(FORMATS[form](rows) if form in FORMATS else as_text(rows, title=title, note=table.note))


def choose_cells(tables: Sequence[PaperTable], patterns: Sequence[str], variant: str = "") -> ChosenCells:
    """Return tables with their cells that match. Raise UserError if no cell does."""
    names = ", ".join(table.name for table in tables)
    known = sorted({cell.variant for table in tables for cell in table.variants})
    if variant and variant not in known:
        allowed = f"variants are {', '.join(known)}" if known else "there are none"
        raise UserError("variant", variant, f"not a variant of {names}{near_miss(variant, known)}; {allowed}")
    cells = [[c for c in (table.variants if variant else table.cells) if c.variant == variant] for table in tables]
    matching = [[cell for cell in own if cell.matches(patterns)] for own in cells]
    if not any(matching):
        example = " ".join(next(own for own in cells if own)[0].words)
        raise UserError("cells", tuple(patterns), f"no cell of {names} matches; one of them is {example}")
    return [(table, own) for table, own in zip(tables, matching, strict=True) if own]


def train_missing(cells: Sequence[TableCell], request: ReproduceRequest) -> bool:
    """Train what is missing of cells, group after group, but for groups that another process is training.

    Returns False if the deadline has passed.
    """
    for key in group_jobs(training_jobs(cells, request.stored(), request)):
        if time.monotonic() >= request.deadline:
            print("not started, the time is over; the same command continues here", flush=True)
            return False
        with claim_group(request.runs, key) as claimed:
            group = group_jobs(training_jobs(cells, request.stored(), request)).get(key, [])
            if claimed and group and not _train_group(group, request):
                return False
    return True


def _train_group(group: Sequence[TrainingJob], request: ReproduceRequest) -> bool:
    """Train a group of jobs. Returns False if the deadline has passed."""
    runs, rounds = sum(len(job.experiment.seeds) for job in group), group[0].experiment.rounds
    about = f"{_plural(len(group), 'partition')}, {_plural(runs, 'run')} of {rounds} rounds"
    print(f"{group[0].label}: {about}", flush=True)
    try:
        train_group(group, request, lambda text: print(text, flush=True))
    except BudgetSpent as reason:
        print(f"{group[0].label}: {reason}", flush=True)
        return False
    return True


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


def _warn_of_missing_data(cells: Sequence[TableCell], request: ReproduceRequest) -> None:
    """Print the data sets that are not prepared, because of which cells were not trained."""
    missing = [c for c in cells if not c.unavailable and not data_prepared(c, request.dataset)]
    for name in dict.fromkeys(cell.setting["dataset"] for cell in missing):
        print(f"{name} is not prepared, so its cells were not trained: fedflat data prepare {name}", file=sys.stderr)
