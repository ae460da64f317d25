"""A bar for long measurements; quiet when not on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")


@contextmanager
def bar(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each piece of work; without a total the bar only counts."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label.strip(), total=total)
        yield lambda: progress.advance(task)


def each(items: Sequence[T], label: str) -> Iterator[T]:
    """The items, with a bar that counts those done."""
    with bar(label, len(items)) as advance:
        for item in items:
            yield item
            advance()
