"""Metrics as TensorBoard's event files, one folder per run and seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.errors import UserError
from fedflat.runs.read import StoredRun


def write_events(runs: Sequence[StoredRun], folder: Path) -> None:
    """Write every number of metrics.jsonl to folder/RUN/seed-N, in place of event files that are there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard: needs the package tensorboard; install fedflat[tensorboard]") from None
    for run, name in zip(runs, _folders(runs), strict=True):
        for seed in dict.fromkeys(row["seed"] for row in run.rows):
            place = folder / name / f"seed-{seed}"
            try:
                _clear(place)
                with SummaryWriter(str(place)) as writer:
                    _write(writer, [row for row in run.rows if row["seed"] == seed], run.evaluated_on)
            except OSError as error:
                raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror or error})") from None


def _folders(runs: Sequence[StoredRun]) -> list[str]:
    """A folder's name for each run, none of which leads elsewhere, and a number where two would be the same."""
    names = [re.sub(r"[^\w.+=-]+", "-", run.name).strip("-.") or "run" for run in runs]
    return [f"{name}-{n}" if names.count(name) > 1 else name for n, name in enumerate(names)]


def _clear(place: Path) -> None:
    """Make the folder, without the event files of an earlier report."""
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("events.out.tfevents.*"):
        old.unlink()


def _write(writer: Any, rows: Sequence[Mapping[str, Any]], samples: str) -> None:
    """Times are seconds of training, so that the same runs always give the same curves."""
    for row in rows:
        for tag, value in row_scalars(row, samples):
            writer.add_scalar(tag, value, row["round"], walltime=row.get("seconds", 0.0))


def row_scalars(row: Mapping[str, Any], samples: str) -> Iterator[tuple[str, float]]:
    """Accuracy and loss on these samples and probes; lists by place, what is not finite left out."""
    values = {f"{samples}/accuracy": row["accuracy"], f"{samples}/loss": row["loss"]}
    for key, value in row.get("probes", {}).items():
        name = key.replace(".", "/", 1)
        values |= {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
    yield from ((tag, value) for tag, value in values.items() if value is not None)
