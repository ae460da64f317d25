"""How long training will take, from what was stored on the same hardware."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedflat.papers.plan import Job, Request
from fedflat.papers.values import Stored
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.folder import read_metrics

DECISIVE = ("method", "model", "dataset", "cohort", "local_epochs", "batch_size")


ENOUGH = 100  # rounds from which on a run's time is not mostly that of its start


def estimate(group: Sequence[Job], request: Request, stored: Stored, hardware: str) -> float | None:
    """Seconds for what is left of a group; None where nothing like it is stored.

    The least time per round and seed of stored runs, times the rounds and seeds that are left.
    """
    rates = _rates(group[0], stored, hardware)
    left = sum(len(j.experiment.seeds) * (j.experiment.rounds - played(request.folder(j))) for j in group)
    return min(rates) * left if rates else None


def _rates(job: Job, stored: Stored, hardware: str) -> list[float]:
    """Seconds per round and seed of stored runs with the same method, model and data."""
    plain = experiment_to_dict(job.experiment)
    records = [record for same in stored.records.values() for record in same.values()]
    fitting = [record for record in records if all(record.config[name] == plain[name] for name in DECISIVE)]
    runs = [run for record in fitting for run in record.runs if run["versions"]["hardware"] == hardware]
    return [run["seconds"] / run["rounds"] / run["together"] for run in runs if run["rounds"] >= ENOUGH]


def played(folder: Path) -> int:
    """The round up to which a run folder has metrics."""
    rows = read_metrics(folder / "metrics.jsonl")
    return int(rows[-1]["round"]) if rows else 0
