"""Write a run's metrics as TensorBoard event files, one folder per run and seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedflat.errors import UserError
from fedflat.runs.read import StoredRun
from fedflat.runs.trackers import open_event_writer, write_event_rows, write_hyper_parameters


def write_events(runs: Sequence[StoredRun], folder: Path) -> None:
    """Write every number of metrics.jsonl and the options to folder/RUN/seed-N, replacing event files from before.

    Args:
        runs: the runs to write.
        folder: created if it does not exist.
    """
    for run, name in zip(runs, _folder_names(runs), strict=True):
        for seed in dict.fromkeys(row["seed"] for row in run.rows):
            target = folder / name / f"seed-{seed}"
            try:
                with open_event_writer(target) as writer:
                    write_hyper_parameters(writer, run.config, seed)
                    write_event_rows(writer, [row for row in run.rows if row["seed"] == seed], run.evaluated_on)
            except OSError as error:
                raise UserError("tensorboard", folder, f"cannot be written ({error.strerror or error})") from None


def _folder_names(runs: Sequence[StoredRun]) -> list[str]:
    """Turn the runs' names into distinct folder names without slashes or leading dots."""
    names = [re.sub(r"[^\w.+=-]+", "-", run.name).strip("-.") or "run" for run in runs]
    return [f"{name}-{n}" if names.count(name) > 1 else name for n, name in enumerate(names)]
