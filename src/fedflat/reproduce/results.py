"""Our numbers, stored as one JSON file per experiment and looked up by a table's cell.

The files are results/PAPER/TABLE/CELL.json; results/README.md describes their keys.
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
from fedflat.reproduce.cells import cell_experiment, experiment_key
from fedflat.reproduce.table import TableCell
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import write_atomically
from fedflat.runs.result import mean_std

JPEG = "JPEG"  # in the words about the data: the images went through JPEG, and the numbers are to be replaced
COUNTED_PARAMETERS = 1000  # size of the model on which messages are counted


def default_results() -> Path:
    """Return results/ of the checkout that this code runs from; of the current folder if the package is installed."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout / "results" if (checkout / "pyproject.toml").exists() else Path("results")


@dataclass(frozen=True)
class StoredRecord:
    """The content of one file: an experiment, its numbers by seed (accuracies in percent), and where they come from.

    Args:
        cell: name of the first cell with these settings, with marks for a data set or rounds other than the paper's.
        config: the experiment, as in config.yaml.
        rounds: rounds that were to be trained.
        seeds: by seed: numbers, diverged, curve, and run, an index into `runs`.
        runs: for each call that trained: seeds, seconds, hardware and so on.
    """

    cell: str
    config: dict[str, Any]
    rounds: int
    seeds: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]

    @cached_property
    def key(self) -> str:
        """The experiment_key of what was trained."""
        return experiment_key(experiment_from_dict(self.config))

    def path(self, folder: Path) -> Path:
        """Return the record's file in a results folder."""
        table, *words = self.cell.split()
        return folder / table / f"{'_'.join(words)}.json"

    def numbers(self, seed: int | str) -> dict[str, float | None]:
        """Return the numbers of a seed by measure; empty if the seed was not trained."""
        numbers: dict[str, float | None] = self.seeds.get(str(seed), {}).get("numbers", {})
        return numbers

    @property
    def jpeg(self) -> bool:
        """Whether it was trained on images that went through JPEG."""
        return any(JPEG in run.get("data", "") for run in self.runs)

    def merged(self, other: StoredRecord) -> StoredRecord:
        """Return this record with the seeds of another of the same experiment; the other's numbers replace ours.

        Numbers of JPEG images are not mixed with others: the record with the original images is returned alone.
        """
        if self.jpeg != other.jpeg:
            return other if self.jpeg else self
        seeds = dict(self.seeds)
        for seed, new in other.seeds.items():
            old = self.seeds.get(seed, {"numbers": {}})
            numbers = {**old["numbers"], **new["numbers"]}
            seeds[seed] = {**new, "numbers": numbers, "run": new["run"] + len(self.runs)}
        return replace(self, config=other.config, seeds=dict(sorted(seeds.items())), runs=[*self.runs, *other.runs])


def write_record(folder: Path, record: StoredRecord) -> None:
    """Store a record in a results folder; seeds that are already stored are kept, unless JPEG images are replaced."""
    path = record.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = read_record(path) if path.exists() else None
    if old and old.key == record.key and old.rounds == record.rounds:
        record = old.merged(record)
    write_atomically(path, _record_text(asdict(record)))


def _record_text(values: dict[str, Any]) -> str:
    """Return JSON with lists of plain values on one line."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def delete_jpeg(folder: Path) -> list[Path]:
    """Delete the records of a results folder that were trained on JPEG images, and return their files."""
    files = [path for path in sorted(folder.glob("*/*/*.json")) if read_record(path).jpeg]
    for path in files:
        path.unlink()
    return files


def read_record(path: Path) -> StoredRecord:
    """Read a record. Raise UserError if the file is not one."""
    try:
        record = StoredRecord(**json.loads(path.read_text(encoding="utf-8")))
        assert record.key  # raises for a configuration that cannot be read
        return record
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError("results", path, f"not a stored result ({type(error).__name__}: {error})") from None


class OurValue(NamedTuple):
    """Our numbers for a cell.

    Args:
        values: one value per seed, in the paper's unit.
        rounds: rounds trained.
        diverged: number of seeds that diverged.
        jpeg: whether the images went through JPEG.
    """

    values: list[float]
    rounds: int
    diverged: int = 0
    jpeg: bool = False

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return mean_std(self.values)[0]

    @property
    def std(self) -> float:
        """Standard deviation over seeds; 0 for one seed."""
        return mean_std(self.values)[1] if math.isfinite(self.mean) else 0.0


class StoredResults:
    """All records of a results folder.

    Args:
        folder: the results folder.
        changes: for a cell, the fields of Experiment in which our runs differ from the paper on purpose.
    """

    def __init__(self, folder: Path, changes: Callable[[TableCell], dict[str, Any]] = lambda cell: {}) -> None:
        self.changes = changes
        self.records: dict[str, dict[int, StoredRecord]] = {}  # by key and rounds
        for record in [read_record(path) for path in sorted(folder.glob("*/*/*.json"))]:
            same = self.records.setdefault(record.key, {})
            same[record.rounds] = same[record.rounds].merged(record) if record.rounds in same else record

    def experiment(self, cell: TableCell, **more: Any) -> Experiment:
        """Return the experiment that stands for a cell here, with `more` changes to its fields."""
        return cell_experiment(cell, **{**self.changes(cell), **more})

    def comparable(self, cell: TableCell, ours: OurValue) -> bool:
        """Return whether our number was trained with the settings and all the rounds of the paper."""
        same = experiment_key(self.experiment(cell)) == experiment_key(cell_experiment(cell))
        return ours.rounds >= cell.setting["rounds"] and same

    def record(self, experiment: Experiment) -> StoredRecord | None:
        """Return the record of an experiment: with all its rounds, or else with the most there are."""
        by_rounds = self.records.get(experiment_key(experiment), {})
        return by_rounds.get(experiment.rounds) or by_rounds.get(max(by_rounds, default=0))

    def ours(self, cell: TableCell) -> OurValue | None:
        """Return our numbers for a cell, None if there are none."""
        experiment = self.experiment(cell)
        if cell.unavailable:
            return None
        if cell.measure == "models":
            return OurValue([models_per_round(experiment)], experiment.rounds)
        record = self.record(experiment)
        if record is None:
            return None
        if cell.measure in ("rounds", "sent"):
            return self._until_fedavg(cell, record)
        if cell.measure == "seconds":
            seconds = [run["seconds"] / run["rounds"] / run["together"] for run in record.runs]
            return OurValue(seconds, record.rounds, jpeg=record.jpeg)
        numbers = [record.numbers(seed).get(cell.measure) for seed in record.seeds]
        values = [value for value in numbers if value is not None]
        diverged = sum(bool(seed.get("diverged")) for seed in record.seeds.values())
        return OurValue(values, record.rounds, diverged, record.jpeg) if values else None

    def _until_fedavg(self, cell: TableCell, record: StoredRecord) -> OurValue | None:
        """Return the rounds until FedAvg's final accuracy, or the models sent by then; infinite for seeds below it."""
        if isinstance(cell.setting["method"], FedAvg):
            return OurValue([record.rounds], record.rounds, jpeg=record.jpeg)
        fedavg = self.record(self.experiment(cell, method=FedAvg()))
        if fedavg is None or (fedavg.rounds, fedavg.jpeg) != (record.rounds, record.jpeg):
            return None
        target = mean_std([v for s in fedavg.seeds if (v := fedavg.numbers(s).get("last100")) is not None])[0]
        firsts = [first_reaching(record.seeds[s]["curve"], target) for s in record.seeds]
        factor = models_per_round(self.experiment(cell)) / 100 if cell.measure == "sent" else 1.0
        return OurValue([factor * first for first in firsts], record.rounds, jpeg=record.jpeg)


def first_reaching(curve: Sequence[Sequence[float]], target: float) -> float:
    """Return the first round of a curve with an accuracy of at least `target`, infinity if there is none."""
    return next((round for round, accuracy in curve if accuracy >= target), math.inf)


def models_per_round(experiment: Experiment) -> float:
    """Return how many models a client receives and sends in a round, counted on messages without their scalars."""
    traffic = count_traffic(experiment.method, torch.zeros(COUNTED_PARAMETERS))
    return float(round((traffic.down + traffic.up) / COUNTED_PARAMETERS / 4))
