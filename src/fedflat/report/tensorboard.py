"""Write a run's metrics as TensorBoard event files, one folder per run and seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.errors import NOT_SHOWN, UserError
from fedflat.runs.read import StoredRun


def write_events(runs: Sequence[StoredRun], folder: Path) -> None:
    """Write every number of metrics.jsonl to folder/RUN/seed-N, replacing event files from before.

    Args:
        runs: the runs to write.
        folder: created if it does not exist.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        problem = "needs the package tensorboard; install fedflat[tensorboard]"
        raise UserError("tensorboard", NOT_SHOWN, problem) from None
    for run, name in zip(runs, _folder_names(runs), strict=True):
        for seed in dict.fromkeys(row["seed"] for row in run.rows):
            target = folder / name / f"seed-{seed}"
            try:
                _make_without_events(target)
                with SummaryWriter(str(target)) as writer:
                    _write_rows(writer, [row for row in run.rows if row["seed"] == seed], run.evaluated_on)
            except OSError as error:
                raise UserError("tensorboard", folder, f"cannot be written ({error.strerror or error})") from None


def _folder_names(runs: Sequence[StoredRun]) -> list[str]:
    """Turn the runs' names into distinct folder names without slashes or leading dots."""
    names = [re.sub(r"[^\w.+=-]+", "-", run.name).strip("-.") or "run" for run in runs]
    return [f"{name}-{n}" if names.count(name) > 1 else name for n, name in enumerate(names)]


def _make_without_events(folder: Path) -> None:
    """Create the folder and delete the event files of an earlier report."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()


def _write_rows(writer: Any, rows: Sequence[Mapping[str, Any]], evaluated_on: str) -> None:
    """Write one seed's rows; the wall time is seconds of training, so that equal runs give equal curves."""
    for row in rows:
        for tag, value in row_scalars(row, evaluated_on):
            writer.add_scalar(tag, value, row["round"], walltime=row.get("seconds", 0.0))


def row_scalars(row: Mapping[str, Any], evaluated_on: str) -> Iterator[tuple[str, float]]:
    """Yield (tag, value) for accuracy, loss and probes of a row of metrics.jsonl, without values that are not finite.

    Args:
        row: one line of metrics.jsonl; a probe's list gives one tag per element.
        evaluated_on: "test" or "validation", the first part of the tags of accuracy and loss.
    """
    values = {f"{evaluated_on}/accuracy": row["accuracy"], f"{evaluated_on}/loss": row["loss"]}
    for key, value in row.get("probes", {}).items():
        name = key.replace(".", "/", 1)
        values |= {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
    yield from ((tag, value) for tag, value in values.items() if value is not None)
