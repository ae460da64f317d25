"""fedflat personalise: the accuracy of personal models as a table and as personalise.json in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.outputs import check_file
from fedflat.core.metric import MainMetric
from fedflat.errors import UserError
from fedflat.options import Epochs, Positive
from fedflat.personal.fine_tuning import AccuracyRow, personalise
from fedflat.runs.folder import write_atomically


def print_personalised(
    run: Path, epochs: Sequence[int] = (1, 5), out: Path | None = None, alone: bool = True, lr: float | None = None
) -> None:
    """Print the mean accuracies of personal models and write every client's accuracy to a JSON file.

    Args:
        run, epochs, alone, lr: see `fedflat.personalise`.
        out: the file to write, personalise.json in the run's folder by default.
    """
    out = out or run / "personalise.json"
    rows = personalise(run, epochs, alone, lr)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(list(map(_json_row, rows)), indent=2) + "\n")
    console = Console()
    console.print(personal_table(rows)) if console.is_terminal else Console(width=120).print(personal_table(rows))
    print(f"{rows[0].metric} of every client in {out}")


def _json_row(row: AccuracyRow) -> dict[str, Any]:
    """Return a row of personalise.json, which calls the metric by its name."""
    values = row._asdict()
    metric, tested_on = values.pop("metric"), values.pop("tested_on")
    named = {metric if name == "accuracy" else name: value for name, value in values.items()}
    return named if metric == "accuracy" else named | {"tested_on": tested_on}


def personal_table(rows: Sequence[AccuracyRow]) -> Table:
    """Return a table with one line for each scheme and number of epochs."""
    clients = sum(len(seed) for seed in rows[0].clients.values())
    caption = (
        f"mean ± standard deviation over {clients} clients (of all seeds), tested on {rows[0].tested_on}; "
        "0 epochs is the global model"
    )
    table, form = Table("model", "epochs", rows[0].metric, caption=caption), MainMetric(rows[0].metric).form
    for row in rows:
        table.add_row(row.scheme, str(row.epochs), f"{row.accuracy:{form}} ± {row.std:{form}}")
    return table


@dataclass(frozen=True, kw_only=True)
class PersonaliseOptions:
    """Fine-tune the final model of a run on every client's own data, and measure it on the client's test samples."""

    epochs: tuple[Epochs, ...] = (1, 5)
    """Numbers of epochs of fine-tuning on the client's own data; 0 is the global model."""
    lr: Positive | None = None
    """Learning rate of fine-tuning; the run's unless given."""
    no_alone: bool = False
    """Leave out local-only training: models that clients train from the initial model without federation."""
    out: Path | None = None
    """File for every client's accuracy; personalise.json in the run's folder unless given."""


def personalise_command(words: list[str]) -> None:
    """Run fedflat personalise RUN."""
    runs, flags = split_positionals(words)
    options = parse_options(PersonaliseOptions, flags, "fedflat personalise RUN")
    if len(runs) != 1:
        raise UserError(None, " ".join(["personalise", *runs]), "name the folder of one complete run")
    out = options.out or Path(runs[0]) / "personalise.json"
    check_file(out, "personalise.json")
    print_personalised(Path(runs[0]), options.epochs, out, not options.no_alone, options.lr)
