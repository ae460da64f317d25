"""A live bar for training: round, accuracy, loss, rounds per second, time left. Quiet when not on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
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

    def __enter__(self) -> Bar:
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
