"""fedflat personalise: the table on the terminal and personalise.json beside the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedflat.personal.fine_tuning import AccuracyRow, personalise
from fedflat.runs.folder import write_atomically


def personalise_command(
    run: Path, epochs: Sequence[int] = (1, 5), out: Path | None = None, alone: bool = True, lr: float | None = None
) -> None:
    """Print the accuracy of personal models and write them to `out`, by default personalise.json in RUN."""
    out = out or run / "personalise.json"
    rows = personalise(run, epochs, alone, lr)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps([row._asdict() for row in rows], indent=2) + "\n")
    console = Console()
    console.print(table(rows)) if console.is_terminal else Console(width=120).print(table(rows))
    print(f"accuracy of every client in {out}")


def table(rows: Sequence[AccuracyRow]) -> Table:
    """One line per scheme and number of epochs."""
    clients = sum(len(seed) for seed in rows[0].clients.values())
    caption = (
        f"mean ± standard deviation over {clients} clients (of all seeds), tested on their own label mix; "
        "0 epochs is the global model"
    )
    shown = Table("model", "epochs", "accuracy", caption=caption)
    for row in rows:
        shown.add_row(row.scheme, str(row.epochs), f"{row.accuracy:.2%} ± {row.std:.2%}")
    return shown
