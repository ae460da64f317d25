"""Progress of long work on stderr: a bar on a terminal, and in a log (no terminal) one line every half minute at most.

TrainingBar   rounds of a training, with the newest accuracy and loss
counting_bar  pieces of work, such as iterations of an analysis; `with_bar` counts the items of a sequence
download_bar  bytes or samples of a download or a conversion
LogTicker     the lines of a log
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 30.0  # of a log, at least; also before its first line
NARROW = 110  # a terminal of fewer columns has a shorter bar, and fewer figures beside it
_T = TypeVar("_T")


def _bar(*columns: ProgressColumn, shown: bool = True, transient: bool = False) -> Progress:
    """Return a display with a label, a bar and these columns; it shows nothing if stderr is no terminal."""
    console = Console(stderr=True)
    disable = not (shown and console.is_terminal)
    label = TextColumn("{task.description}")
    bar = BarColumn(40 if console.width >= NARROW else 8)
    return Progress(label, bar, *columns, console=console, transient=transient, disable=disable)


def shorten_middle(text: str, width: int) -> str:
    """Return a text that is too long with … for its middle: names and numbers tend to differ at their ends."""
    return text if len(text) <= width else f"{text[: width - width // 2 - 1]}…{text[-(width // 2) :]}"


class LogTicker:
    """Prints lines to stderr if it is no terminal: at most one every SECONDS_BETWEEN_LINES."""

    def __init__(self) -> None:
        self._is_log = not Console(stderr=True).is_terminal
        self._next_line_at = time.monotonic() + SECONDS_BETWEEN_LINES

    def tell(self, line: str) -> None:
        """Print `line` if enough time has passed since the last one; otherwise drop it."""
        if self._is_log and time.monotonic() >= self._next_line_at:
            print(line, file=sys.stderr, flush=True)
            self._next_line_at = time.monotonic() + SECONDS_BETWEEN_LINES


class TrainingBar:
    """Shows the progress of one training, as a bar or as lines of a log.

    Use it as a context manager and pass `update` as `watch` to fedflat.run.

    Args:
        label: the name of the run.
        rounds: the number of rounds in all.
    """

    def __init__(self, label: str, rounds: int) -> None:
        self.label, self.rounds = label, rounds
        self._ticker = LogTicker()
        self._progress = _bar(MofNCompleteColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
        self._narrow = self._progress.console.width < NARROW
        shown = shorten_middle(label, self._progress.console.width // 3) if self._narrow else label
        self._task = self._progress.add_task(shown, total=rounds, figures="")

    def __enter__(self) -> TrainingBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, round: int, rows: list[dict[str, Any]]) -> None:
        """Show that `round` rounds are done, with the newest metrics `rows` (one per seed, empty before the first)."""
        metric = self._metric(rows) if rows else ""
        speed = f"{self._progress.tasks[0].speed or 0.0:.1f} rounds/s"
        figures = metric if self._narrow or not rows else f"{metric}  {self._loss(rows)}  {speed}"
        self._progress.update(self._task, completed=round, figures=figures)
        self._ticker.tell(f"{self.label}: round {round} of {self.rounds}" + (f", {metric}" if rows else ""))

    def _metric(self, rows: list[dict[str, Any]]) -> str:
        """Return the mean of the main metric, the first of each row after round and seed, in words."""
        name = next(key for key in rows[0] if key not in ("round", "seed"))
        values = [row[name] for row in rows if row[name] is not None]
        return f"{name} {fmean(values):{'.1%' if name == 'accuracy' else '.4g'}}" if values else name

    def _loss(self, rows: list[dict[str, Any]]) -> str:
        """Return the mean loss of the seeds that have not diverged, in words."""
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        return f"loss {fmean(losses):.3f}" if losses else "diverged"


@contextmanager
def counting_bar(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a bar that counts pieces of work; it disappears at the end.

    Args:
        label: what is counted.
        total: how many pieces there are; without it the bar only counts.

    Yields a function to call after each piece.
    """
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with _bar(*columns, transient=True) as progress:
        task = progress.add_task(label.strip(), total=total)
        yield lambda: progress.advance(task)


def with_bar(items: Sequence[_T], label: str) -> Iterator[_T]:
    """Yield the items, with a bar that counts those that are done."""
    with counting_bar(label, len(items)) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def download_bar(label: str, total: int | None, shown: bool, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how much of a download or conversion is done, as a bar or as lines of a log.

    Args:
        label: what is downloaded or converted.
        total: the number of units (bytes or samples); None if it is unknown.
        shown: False shows nothing.
        done: the units that were done before.

    Yields a function to call with the number of units that were done since the last call.
    """
    ticker = LogTicker()
    with _bar(TaskProgressColumn(), TimeRemainingColumn(), shown=shown) as progress:
        task = progress.add_task(label, total=total, completed=done)

        def advance(units: int) -> None:
            progress.advance(task, units)
            if shown:
                now = progress.tasks[0].completed
                ticker.tell(f"{label}: " + (f"{now / total:.0%} done" if total else f"{now:,.0f} bytes so far"))

        yield advance
