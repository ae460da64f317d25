"""Progress of long work: bars on a terminal, a line every half minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def download_bar(label: str, total: int | None, shown: bool, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, lines where that is no terminal; call what it gives with the number of units done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console, pulse = Console(stderr=True), LogTicker()
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as display:
        task = display.add_task(label, total=total, completed=done)

        def advance(units: int) -> None:
            display.advance(task, units)
            if shown:
                pulse.tell(_line(label, display.tasks[0].completed, total))

        yield advance


def _line(label: str, done: float, total: int | None) -> str:
    """How far it is, in words."""
    return f"{label}: {done / total:.0%} done" if total else f"{label}: {done:,.0f} bytes so far"


SECONDS_BETWEEN_LINES = 30.0  # between two lines at least


class LogTicker:
    """Prints what it is told, at most one line every SECONDS and none before the first have passed."""

    def __init__(self) -> None:
        self._quiet, self._due = Console(stderr=True).is_terminal, time.monotonic() + SECONDS_BETWEEN_LINES

    def tell(self, line: str) -> None:
        """Print the line if it is time."""
        if not self._quiet and time.monotonic() >= self._due:
            print(line, file=sys.stderr, flush=True)
            self._due = time.monotonic() + SECONDS_BETWEEN_LINES


class TrainingBar:
    """Shows one training; `update` fits `fedflat.run(watch=...)`."""

    def __init__(self, label: str, rounds: int) -> None:
        self.label, console = label, Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(label, total=rounds, figures="")

    def __enter__(self) -> TrainingBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, round: int, rows: list[dict[str, Any]]) -> None:
        """Show the newest metrics."""
        speed = self._progress.tasks[0].speed or 0.0
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        accuracy = sum(row["accuracy"] for row in rows) / len(rows) if rows else 0.0
        loss = f"loss {sum(losses) / len(losses):.3f}" if losses else "diverged" if rows else ""
        figures = f"accuracy {accuracy:.1%}  {loss}  {speed:.1f} rounds/s" if rows else ""
        self._progress.update(self._task, completed=round, figures=figures)


T = TypeVar("T")


@contextmanager
def counting_bar(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each piece of work; without a total the bar only counts."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label.strip(), total=total)
        yield lambda: progress.advance(task)


def with_bar(items: Sequence[T], label: str) -> Iterator[T]:
    """The items, with a bar that counts those done."""
    with counting_bar(label, len(items)) as advance:
        for item in items:
            yield item
            advance()
