"""Our numbers: measured on finished runs, stored as one JSON file per experiment, looked up by a table's cell.

The files are results/PAPER/TABLE/CELL.json; results/README.md describes their keys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fedflat.core.local_training import count_traffic
from fedflat.errors import UserError
from fedflat.methods.fedavg import FedAvg
from fedflat.reproduce.cells import ANALYSIS_NUMBERS, PERSONAL_SCHEMES, cell_experiment, experiment_key
from fedflat.reproduce.table import TableCell
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import write_atomically
from fedflat.runs.result import Result, mean_std

Device = Literal["auto", "cpu", "cuda"]
SeedNumbers = dict[int, dict[str, float | None]]  # by seed and measure
CURVE_POINTS = 50  # the most that are stored of a curve
COUNTED_PARAMETERS = 1000  # size of the model on which messages are counted


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

    def merged(self, other: StoredRecord) -> StoredRecord:
        """Return this record with the seeds of another of the same experiment; the other's numbers replace ours."""
        seeds = dict(self.seeds)
        for seed, new in other.seeds.items():
            old = self.seeds.get(seed, {"numbers": {}})
            numbers = {**old["numbers"], **new["numbers"]}
            seeds[seed] = {**new, "numbers": numbers, "run": new["run"] + len(self.runs)}
        return replace(self, config=other.config, seeds=dict(sorted(seeds.items())), runs=[*self.runs, *other.runs])


def accuracy_numbers(result: Result, seed: int, experiment: Experiment) -> dict[str, float | None]:
    """Return accuracies in percent and the last values of probes.

    "final" is the accuracy in the last round, "last50" and "last100" the mean over the last 50 and 100 rounds, "half"
    the mean over the 100 rounds before half of them. Training ends early when all models have diverged; the last
    accuracy then stands for the rounds that would follow.
    """
    rows = [row for row in result.history if row["seed"] == seed]
    accuracies, last = {row["round"]: row["accuracy"] for row in rows}, rows[-1]["accuracy"]
    end = experiment.rounds
    accuracies |= {r: last for r in range(rows[-1]["round"] + 1, end + 1) if experiment.evaluates(r)}
    return {
        "final": _percent([last]),
        "last50": _percent([accuracy for r, accuracy in accuracies.items() if end - 50 < r]),
        "last100": _percent([accuracy for r, accuracy in accuracies.items() if end - 100 < r]),
        "half": _percent([accuracy for r, accuracy in accuracies.items() if end // 2 - 100 < r <= end // 2]),
        **_last_probe_values(rows),
    }


def _last_probe_values(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return what probes measured last; of a list (such as accuracies by class), the lowest value."""
    last: dict[str, Any] = next((row["probes"] for row in reversed(rows) if "probes" in row), {})
    lists = {name: [v for v in values if v is not None] for name, values in last.items() if isinstance(values, list)}
    return {**last, **{name: min(values, default=None) for name, values in lists.items()}}


def _percent(values: Sequence[float]) -> float | None:
    return round(100 * sum(values) / len(values), 4) if values else None


def thinned_curve(result: Result, seed: int) -> list[list[float]]:
    """Return pairs of round and accuracy, at most CURVE_POINTS, evenly spaced and ending with the last round."""
    rows = [row for row in result.history if row["seed"] == seed]
    every = -(-len(rows) // CURVE_POINTS)
    return [[row["round"], round(100 * row["accuracy"], 2)] for row in rows[::-1][::every]][::-1]


def final_model_numbers(folder: Path, measures: Collection[str], seeds: Iterable[int], device: Device) -> SeedNumbers:
    """Measure flatness and personalised accuracy of a run's final models.

    Args:
        folder: the run folder.
        measures: keys of ANALYSIS_NUMBERS, and PERSONAL_SCHEMES with epochs (tuned-5).
        seeds: the run's seeds.
        device: where curvature is computed.

    Returns a number for each seed and measure, None where a model cannot be measured.
    """
    numbers: SeedNumbers = {seed: dict.fromkeys(sorted(measures)) for seed in seeds}
    with suppress(UserError):  # models that diverged have no curvature
        if flatness := [m for m in measures if m in ANALYSIS_NUMBERS]:
            _measure_flatness(folder, flatness, device, numbers)
        if personal := [m for m in measures if m not in ANALYSIS_NUMBERS]:
            _measure_personal(folder, personal, numbers)
    return numbers


def _measure_flatness(folder: Path, measures: Collection[str], device: Device, numbers: SeedNumbers) -> None:
    """λ1 is computed by power iteration, as in FedGloSS, unless λ5 is wanted too."""
    from fedflat.flatness.analyse import analyse
    from fedflat.flatness.finished_run import AnalysisSettings

    what: Any = tuple(dict.fromkeys(ANALYSIS_NUMBERS[m][0] for m in measures))
    five = "ratio" in measures
    settings = AnalysisSettings(
        what=what, solver="lanczos" if five else "power", top=5 if five else 1, probes=2, device=device
    )
    (documents,) = analyse([folder], settings).documents.values()
    for measure in measures:
        document, number = ANALYSIS_NUMBERS[measure]
        for seed, values in documents.get(document, {}).get("seeds", {}).items():
            numbers[int(seed)][measure] = values[number]


def _measure_personal(folder: Path, measures: Collection[str], numbers: SeedNumbers) -> None:
    """The number is the mean accuracy over the clients, in percent."""
    from fedflat.personal.fine_tuning import personalise

    rows = personalise(folder, epochs=(1, 5), alone="alone" in measures)
    for measure in measures:
        scheme, _, epochs = measure.partition("-")
        for row in rows:
            if PERSONAL_SCHEMES[scheme] in row.scheme and epochs in ("", str(row.epochs)):
                for seed, clients in row.clients.items():
                    numbers[seed][measure] = 100 * sum(clients.values()) / len(clients)


def write_record(folder: Path, record: StoredRecord) -> None:
    """Store a record in a results folder; seeds that are already stored are kept."""
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


def read_record(path: Path) -> StoredRecord:
    """Read a record. Raise UserError if the file is not one."""
    try:
        record = StoredRecord(**json.loads(path.read_text(encoding="utf-8")))
        assert record.key  # raises for a configuration that cannot be read
        return record
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError("results", path, f"not a stored result ({type(error).__name__}: {error})") from None


class OurValue(NamedTuple):
    """Our numbers for a cell: one value per seed in the paper's unit, rounds trained, number of seeds that diverged."""

    values: list[float]
    rounds: int
    diverged: int = 0

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
            return OurValue([run["seconds"] / run["rounds"] / run["together"] for run in record.runs], record.rounds)
        numbers = [record.numbers(seed).get(cell.measure) for seed in record.seeds]
        values = [value for value in numbers if value is not None]
        diverged = sum(bool(seed.get("diverged")) for seed in record.seeds.values())
        return OurValue(values, record.rounds, diverged) if values else None

    def _until_fedavg(self, cell: TableCell, record: StoredRecord) -> OurValue | None:
        """Return the rounds until FedAvg's final accuracy, or the models sent by then; infinite for seeds below it."""
        if isinstance(cell.setting["method"], FedAvg):
            return OurValue([record.rounds], record.rounds)
        fedavg = self.record(self.experiment(cell, method=FedAvg()))
        if fedavg is None or fedavg.rounds != record.rounds:
            return None
        target = mean_std([v for s in fedavg.seeds if (v := fedavg.numbers(s).get("last100")) is not None])[0]
        firsts = [first_reaching(record.seeds[s]["curve"], target) for s in record.seeds]
        factor = models_per_round(self.experiment(cell)) / 100 if cell.measure == "sent" else 1.0
        return OurValue([factor * first for first in firsts], record.rounds)


def first_reaching(curve: Sequence[Sequence[float]], target: float) -> float:
    """Return the first round of a curve with an accuracy of at least `target`, infinity if there is none."""
    return next((round for round, accuracy in curve if accuracy >= target), math.inf)


def models_per_round(experiment: Experiment) -> float:
    """Return how many models a client receives and sends in a round, counted on messages without their scalars."""
    traffic = count_traffic(experiment.method, torch.zeros(COUNTED_PARAMETERS))
    return float(round((traffic.down + traffic.up) / COUNTED_PARAMETERS / 4))
