"""Our numbers: one JSON file per trained cell in results/PAPER/TABLE/, and what they say about the printed ones.

With p ± σ_p printed and m ± σ_m ours (over seeds), the allowed distance is 2 √(σ_p² + σ_m² + f²), where f is 0.5 points
for accuracies (about the standard error of 10,000 test images) and 5 % of p for other measures: the share of error
that neither ± knows of. A ± over clients, as in FedSOL's Table 9, does not count as σ_p.

- within 2 sd: |m − p| is at most that.
- same ranking: it is more, but against every rival (same column) that has a number, m is on the side where the paper
  has it; rivals whose printed numbers are no further apart than the allowed distance do not count, nor those that
  diverged here, and one must.
- not reproduced: it is more, and a rival is on the other side.
- outside, no rival yet: it is more, and no rival that counts has a number.
- fails too, trains here: for what the paper prints as not converging; up to 1.5 times the accuracy of guessing fails.

An accuracy that is not reached (Tables of rounds) is reproduced where ours is not reached either.

No verdict without a printed number, without ours, or after fewer rounds than the paper's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedflat.core.local_training import count_traffic
from fedflat.errors import UserError
from fedflat.methods.fedavg import FedAvg
from fedflat.reproduce.cells import cell_experiment, chance_accuracy, experiment_key
from fedflat.reproduce.table import MEASURES, PaperTable, TableCell
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import write_atomically
from fedflat.runs.result import Result, mean_std


def our_text(cell: TableCell, ours: OurValue) -> str:
    """Ours, with the number of seeds."""
    if math.isinf(ours.mean):
        return "not reached"
    if cell.measure == "models":
        return f"{ours.mean:g}"
    lost = f", {ours.diverged} diverged" if ours.diverged else ""
    several = f" ± {ours.std:.2f} ({len(ours.values)} seeds{lost})" if len(ours.values) > 1 else " (1 seed" + lost + ")"
    return f"{ours.mean:.2f}{several}"


POINTS = 50  # of a stored curve


@dataclass(frozen=True)
class StoredRecord:
    """One experiment: its seeds' numbers (accuracies in percent) and the runs they come from."""

    cell: str
    config: dict[str, Any]
    rounds: int
    seeds: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]

    @cached_property
    def key(self) -> str:
        """What was trained."""
        return experiment_key(experiment_from_dict(self.config, "config"))

    def path(self, folder: Path) -> Path:
        """The record's file; what is not trained as the paper has it is marked in the name."""
        table, *words = self.cell.split()
        return folder / table / f"{'_'.join(words)}.json"

    def numbers(self, seed: int | str) -> dict[str, float | None]:
        """A seed's numbers, none where it was not trained."""
        found: dict[str, float | None] = self.seeds.get(str(seed), {}).get("numbers", {})
        return found

    def merged(self, other: StoredRecord) -> StoredRecord:
        """This record with the seeds of another of the same experiment; the other's numbers where both have them."""
        seeds = dict(self.seeds)
        for seed, new in other.seeds.items():
            old = self.seeds.get(seed, {"numbers": {}})
            known = {**old["numbers"], **new["numbers"]}
            seeds[seed] = {**new, "numbers": known, "run": new["run"] + len(self.runs)}
        return replace(self, config=other.config, seeds=dict(sorted(seeds.items())), runs=[*self.runs, *other.runs])


def accuracy_numbers(result: Result, seed: int, experiment: Experiment) -> dict[str, float | None]:
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
        **last_probe_values(rows),
    }


def last_probe_values(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """What probes measured last, of a list the lowest."""
    last: dict[str, Any] = next((row["probes"] for row in reversed(rows) if "probes" in row), {})
    lowest = {name: [v for v in values if v is not None] for name, values in last.items() if isinstance(values, list)}
    return {**last, **{name: min(values, default=None) for name, values in lowest.items()}}


def _percent(values: Sequence[float]) -> float | None:
    return round(100 * sum(values) / len(values), 4) if values else None


def thinned_curve(result: Result, seed: int) -> list[list[float]]:
    """Rounds and accuracies, at most POINTS of them, evenly spaced and ending with the last."""
    rows = [row for row in result.history if row["seed"] == seed]
    every = -(-len(rows) // POINTS)
    return [[row["round"], round(100 * row["accuracy"], 2)] for row in rows[::-1][::every]][::-1]


def write_record(folder: Path, record: StoredRecord) -> None:
    """Store a record, beside the seeds that are stored already."""
    path = record.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = read_record(path) if path.exists() else None
    kept = old.merged(record) if old and old.key == record.key and old.rounds == record.rounds else record
    write_atomically(path, _record_text(asdict(kept)))


def _record_text(values: dict[str, Any]) -> str:
    """JSON with lists of plain values on one line."""
    spread = json.dumps(values, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), spread) + "\n"


def read_record(path: Path) -> StoredRecord:
    """A record; raises UserError for a file that is none."""
    try:
        record = StoredRecord(**json.loads(path.read_text(encoding="utf-8")))
        assert record.key
        return record
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"--results {path}: not a stored result ({type(error).__name__}: {error})") from None


def read_records(folder: Path) -> list[StoredRecord]:
    """Every record of a results folder."""
    return [read_record(path) for path in sorted(folder.glob("*/*/*.json"))]


SIZE = 1000  # parameters of the model on which messages are counted


class OurValue(NamedTuple):
    """One value per seed, in the paper's unit, and the rounds they took; `diverged` counts seeds without a model."""

    values: list[float]
    rounds: int
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean_std(self.values)[0]

    @property
    def std(self) -> float:
        """Over seeds; 0 for one."""
        return mean_std(self.values)[1] if math.isfinite(self.mean) else 0.0


def no_changes(cell: TableCell) -> dict[str, Any]:
    """No changes to a cell's settings."""
    return {}


class StoredResults:
    """The records of a results folder; `changes` says in which fields of Experiment they differ from the paper."""

    def __init__(self, folder: Path, changes: Callable[[TableCell], dict[str, Any]] = no_changes) -> None:
        self.folder, self.changes = folder, changes
        self.records: dict[str, dict[int, StoredRecord]] = {}  # by key and rounds
        for record in read_records(folder):
            same = self.records.setdefault(record.key, {})
            same[record.rounds] = same[record.rounds].merged(record) if record.rounds in same else record

    def experiment(self, cell: TableCell, **more: Any) -> Experiment:
        """What stands for a cell here."""
        return cell_experiment(cell, **{**self.changes(cell), **more})

    def comparable(self, cell: TableCell, ours: OurValue) -> bool:
        """Whether our number was trained with the settings and all the rounds of the paper's."""
        return ours.rounds >= cell.setting["rounds"] and experiment_key(self.experiment(cell)) == experiment_key(
            cell_experiment(cell)
        )

    def record(self, trained: Experiment) -> StoredRecord | None:
        """What is stored of an experiment: all its rounds, or else as many as there are."""
        found = self.records.get(experiment_key(trained), {})
        return found.get(trained.rounds) or found.get(max(found, default=0))

    def ours(self, cell: TableCell) -> OurValue | None:
        """Our numbers for a cell, None where there are none."""
        trained = self.experiment(cell)
        if cell.unavailable:
            return None
        if cell.measure == "models":
            return OurValue([models_per_round(trained)], trained.rounds)
        record = self.record(trained)
        if record is None:
            return None
        if cell.measure in ("rounds", "sent"):
            return self._until_fedavg(cell, record)
        found = [record.numbers(seed).get(cell.measure) for seed in record.seeds]
        values = [value for value in found if value is not None]
        lost = sum(bool(seed.get("diverged")) for seed in record.seeds.values())
        return OurValue(values, record.rounds, lost) if values else None

    def _until_fedavg(self, cell: TableCell, record: StoredRecord) -> OurValue | None:
        """Rounds until FedAvg's final accuracy, or the models sent by then; infinite where a seed is not there."""
        if isinstance(cell.setting["method"], FedAvg):
            return OurValue([record.rounds], record.rounds)
        goal = self.record(self.experiment(cell, method=FedAvg()))
        if goal is None or goal.rounds != record.rounds:
            return None
        target = mean_std([v for s in goal.seeds if (v := goal.numbers(s).get("last100")) is not None])[0]
        firsts = [first_reaching(record.seeds[s]["curve"], target) for s in record.seeds]
        factor = models_per_round(self.experiment(cell)) / 100 if cell.measure == "sent" else 1.0
        return OurValue([factor * first for first in firsts], record.rounds)


def first_reaching(curve: Sequence[Sequence[float]], target: float) -> float:
    """The first stored round whose accuracy is `target` or more, infinity where there is none."""
    return next((round for round, accuracy in curve if accuracy >= target), math.inf)


def models_per_round(trained: Experiment) -> float:
    """Models that a client receives and sends in a round, counted on messages; scalars beside them are not."""
    sent = count_traffic(trained.method, torch.zeros(SIZE))
    return float(round((sent.down + sent.up) / SIZE / 4))


WITHIN, RANKING, NOT_REPRODUCED, OUTSIDE = "within 2 sd", "same ranking", "not reproduced", "outside, no rival yet"


FAILS, TRAINS = "fails too", "trains here"


def allowed_difference(cell: TableCell, ours: OurValue | None, spread: str = "seeds") -> float:
    """How far from the printed number ours may be."""
    assert cell.printed is not None
    unknown = 0.5 if MEASURES[cell.measure].unit == "%" else 0.05 * abs(cell.printed)
    printed = cell.spread or 0.0 if spread == "seeds" else 0.0
    return 2 * math.hypot(printed, ours.std if ours else 0.0, unknown)


def verdict(table: PaperTable, cell: TableCell, stored: StoredResults) -> str:
    """What our number says about the printed one; '' where nothing can be said."""
    ours = stored.ours(cell)
    if ours is None or not stored.comparable(cell, ours):
        return ""
    if cell.failed:
        return FAILS if ours.diverged or ours.mean <= 1.5 * chance_accuracy(cell) else TRAINS
    if cell.printed is None:
        return ""
    if math.isinf(cell.printed) or math.isinf(ours.mean):
        return WITHIN if cell.printed == ours.mean else NOT_REPRODUCED
    if abs(ours.mean - cell.printed) <= allowed_difference(cell, ours, table.spread):
        return WITHIN
    sides = _sides(table, cell, ours, stored)
    return OUTSIDE if not sides else RANKING if all(sides) else NOT_REPRODUCED


def _sides(table: PaperTable, cell: TableCell, ours: OurValue, stored: StoredResults) -> list[bool]:
    """For every rival that counts, whether we stand to it as the paper does."""
    assert cell.printed is not None
    sides = []
    for rival in table.rivals(cell):
        theirs = stored.ours(rival)
        if rival.printed is None or theirs is None or theirs.diverged or not stored.comparable(rival, theirs):
            continue
        gap = cell.printed - rival.printed
        if math.isfinite(gap) and abs(gap) > max(
            allowed_difference(cell, None, table.spread), allowed_difference(rival, None, table.spread)
        ):
            sides.append((ours.mean - theirs.mean) * gap > 0)
    return sides
