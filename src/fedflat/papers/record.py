"""What is stored about a trained cell: one small JSON file in results/PAPER/TABLE/."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedflat.errors import UserError
from fedflat.papers.cells import key
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import write_atomically
from fedflat.runs.result import Result

POINTS = 50  # of a stored curve


@dataclass(frozen=True)
class Record:
    """One experiment: its seeds' numbers (accuracies in percent) and the runs they come from."""

    cell: str
    config: dict[str, Any]
    rounds: int
    seeds: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]

    @cached_property
    def key(self) -> str:
        """What was trained."""
        return key(experiment_from_dict(self.config, "config"))

    def path(self, folder: Path) -> Path:
        """The record's file; what is not trained as the paper has it is marked in the name."""
        table, *words = self.cell.split()
        return folder / table / f"{'_'.join(words)}.json"

    def numbers(self, seed: int | str) -> dict[str, float | None]:
        """A seed's numbers, none where it was not trained."""
        found: dict[str, float | None] = self.seeds.get(str(seed), {}).get("numbers", {})
        return found

    def merged(self, other: Record) -> Record:
        """This record with the seeds of another of the same experiment; the other's numbers where both have them."""
        seeds = dict(self.seeds)
        for seed, new in other.seeds.items():
            old = self.seeds.get(seed, {"numbers": {}})
            known = {**old["numbers"], **new["numbers"]}
            seeds[seed] = {**new, "numbers": known, "run": new["run"] + len(self.runs)}
        return replace(self, config=other.config, seeds=dict(sorted(seeds.items())), runs=[*self.runs, *other.runs])


def numbers(result: Result, seed: int, experiment: Experiment) -> dict[str, float | None]:
    """Accuracies in percent: in the last round, over the last 100 rounds and over the 100 before half of them.

    Where training, all models having diverged, ended early, the last accuracy stands for those that would follow.
    """
    rows = [row for row in result.history if row["seed"] == seed]
    seen, last = {row["round"]: row["accuracy"] for row in rows}, rows[-1]["accuracy"]
    end = experiment.rounds
    seen |= {r: last for r in range(rows[-1]["round"] + 1, end + 1) if experiment.evaluates(r)}
    return {
        "final": _percent([last]),
        "last100": _percent([accuracy for r, accuracy in seen.items() if end - 100 < r]),
        "half": _percent([accuracy for r, accuracy in seen.items() if end // 2 - 100 < r <= end // 2]),
        **probed(rows),
    }


def probed(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """What probes measured last, of a list the lowest."""
    last: dict[str, Any] = next((row["probes"] for row in reversed(rows) if "probes" in row), {})
    lowest = {name: [v for v in values if v is not None] for name, values in last.items() if isinstance(values, list)}
    return {**last, **{name: min(values, default=None) for name, values in lowest.items()}}


def _percent(values: Sequence[float]) -> float | None:
    return round(100 * sum(values) / len(values), 4) if values else None


def curve(result: Result, seed: int) -> list[list[float]]:
    """Rounds and accuracies, at most POINTS of them, evenly spaced and ending with the last."""
    rows = [row for row in result.history if row["seed"] == seed]
    every = -(-len(rows) // POINTS)
    return [[row["round"], round(100 * row["accuracy"], 2)] for row in rows[::-1][::every]][::-1]


def write(folder: Path, record: Record) -> None:
    """Store a record, beside the seeds that are stored already."""
    path = record.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = read(path) if path.exists() else None
    kept = old.merged(record) if old and old.key == record.key and old.rounds == record.rounds else record
    write_atomically(path, _text(asdict(kept)))


def _text(values: dict[str, Any]) -> str:
    """JSON with lists of plain values on one line."""
    spread = json.dumps(values, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), spread) + "\n"


def read(path: Path) -> Record:
    """A record; raises UserError for a file that is none."""
    try:
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
        assert record.key
        return record
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"--results {path}: not a stored result ({type(error).__name__}: {error})") from None


def read_all(folder: Path) -> list[Record]:
    """Every record of a results folder."""
    return [read(path) for path in sorted(folder.glob("*/*/*.json"))]
