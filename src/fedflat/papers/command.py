"""What `fedflat reproduce` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedflat.errors import UserError, near_miss
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


def some_tables(
    names: Sequence[str],
    request: ReproduceRequest,
    patterns: Sequence[str],
    variant: str,
    show: bool = False,
    form: str = "text",
) -> None:
    """Train what is missing of the chosen cells, unless `show`, and print them table by table."""
    chosen = choose([find_table(name) for name in dict.fromkeys(names)], patterns, variant)
    if not show:
        every = [cell for _, cells in chosen for cell in cells]
        train(training_jobs(every, request.stored(), request), request)
        _tell_absent(every, request)
    stored = request.stored()
    for table, cells in chosen:
        lines = table_rows(table, cells, stored, request)
        print(FORMATS[form](lines) if form in FORMATS else as_text(lines, title=_title(table, chosen), note=table.note))


def _tell_absent(cells: Sequence[TableCell], request: ReproduceRequest) -> None:
    """Name the data sets without which cells were not trained."""
    names = dict.fromkeys(
        c.setting["dataset"] for c in cells if not c.unavailable and not data_prepared(c, request.dataset)
    )
    for name in names:
        print(f"{name} is not prepared, so its cells were not trained: fedflat data prepare {name}", file=sys.stderr)


def _title(table: PaperTable, chosen: Sequence[object]) -> str:
    """With the table's name where there are several."""
    return f"{table.name}: {table.title}" if len(chosen) > 1 else table.title


def choose(
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


def train(todo: Sequence[TrainingJob], request: ReproduceRequest) -> None:
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
