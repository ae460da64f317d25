"""Train what is missing of the papers' tables, measure the final models and store the results.

Cells with equal settings are one training job. Jobs that differ only in the partition and the seeds form a group, whose
clients are trained together as lanes of one engine. Groups are trained in the order of the tables.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedflat.data.catalogue import DATASETS
from fedflat.data.prepared import inspect_prepared, prepared_path
from fedflat.methods.fedavg import FedAvg
from fedflat.reproduce.cells import (
    PARTITION,
    cells_like,
    experiment_key,
    on_other_dataset,
    wanted_measures,
    wanted_probes,
)
from fedflat.reproduce.final_numbers import Device, accuracy_numbers, final_model_numbers, thinned_curve
from fedflat.reproduce.results import JPEG, StoredRecord, StoredResults, default_results, write_record
from fedflat.reproduce.table import TableCell
from fedflat.runs.config import dump_experiment, experiment_to_dict
from fedflat.runs.device import choose_device
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import read_stored_run
from fedflat.runs.result import Result
from fedflat.runs.train import Watcher
from fedflat.runs.train_together import run_together

PROBE_TIMES = 10  # how often probes measure during a run


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """How tables are reproduced.

    Args:
        results: folder of the stored results; `default_results` unless given.
        runs: folder for the run folders, from which interrupted training continues.
        seeds: seeds that every cell should have.
        rounds: number of rounds if it is not to be the paper's.
        dataset: data set if it is not to be the paper's.
        engine, device, precision: how clients train, as in Experiment.
        data_note: words about the data, stored with the results; "cifar10 (original pixels)" unless given.
        deadline: value of time.monotonic() after which no further round is trained.
    """

    results: Path = field(default_factory=default_results)
    runs: Path = Path("runs/reproduce")
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int | None = None
    dataset: str | None = None
    engine: str = "auto"
    device: Device = "auto"
    precision: str = "auto"
    data_note: str = ""
    deadline: float = float("inf")

    def changes(self, cell: TableCell) -> dict[str, Any]:
        """Return the fields of Experiment in which this request differs from the paper."""
        changed: dict[str, Any] = {}
        if self.rounds is not None:
            often = min(cell.setting["checkpoint_every"], max(1, self.rounds // 10))
            changed = {"rounds": self.rounds, "checkpoint_every": often}
        return changed if self.dataset is None else changed | on_other_dataset(cell, self.dataset)

    def stored(self) -> StoredResults:
        """Read the results folder; cells are looked up with the changes of this request."""
        return StoredResults(self.results, self.changes)

    def record_name(self, cell: TableCell) -> str:
        """Return the name under which a cell is stored, with marks for another data set and number of rounds."""
        rounds = self.rounds if self.rounds != cell.setting["rounds"] else None
        marks = [f"@{self.dataset}"] * bool(self.dataset) + [f"@rounds-{rounds}"] * bool(rounds)
        return " ".join([cells_like(cell)[0].name, *marks])

    def data_text(self, experiment: Experiment) -> str:
        """Return the words about an experiment's data, which always tell whether images went through JPEG."""
        name = str(experiment.dataset)
        note = self.data_note or (f"{name} (original pixels)" if name in DATASETS else name)
        return f"{note} (JPEG)" if JPEG not in note and is_prepared_from_jpeg(name) else note

    def run_folder(self, job: TrainingJob) -> Path:
        """Return the run folder of a job; its name has a hash of the configuration, and a mark for JPEG images."""
        digest = hashlib.sha256(dump_experiment(job.experiment).encode()).hexdigest()[:8]
        cell = cells_like(job.cells[0])[0]
        mark = "-jpeg" if JPEG in self.data_text(job.experiment) else ""
        return self.runs / cell.table / f"{'_'.join(cell.words)}-{digest}{mark}"


class TrainingJob(NamedTuple):
    """Cells with equal settings, and the experiment that trains their missing seeds."""

    cells: list[TableCell]
    experiment: Experiment

    @property
    def label(self) -> str:
        """The words of the first cell."""
        return " ".join(self.cells[0].words)


def data_prepared(cell: TableCell, dataset: str | None = None) -> bool:
    """Return whether the data set of a cell, or `dataset` in its place, is prepared on this machine."""
    name = dataset or cell.setting["dataset"]
    return name not in DATASETS or prepared_path(name).exists()


def is_prepared_from_jpeg(dataset: str) -> bool:
    """Return whether a data set is prepared on this machine, from JPEG files."""
    path = prepared_path(dataset)
    return dataset in DATASETS and path.exists() and "jpeg" in inspect_prepared(path)[0]["source"]


def missing_seeds(cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest) -> tuple[int, ...]:
    """Return the requested seeds for which cells with equal settings lack a number.

    Numbers of JPEG images count as missing, unless the data at hand are JPEG images too.
    """
    experiment = stored.experiment(cells[0])
    record = stored.record(experiment)
    if record is None or record.rounds != experiment.rounds:
        return request.seeds
    if record.jpeg and JPEG not in request.data_text(experiment):
        return request.seeds
    measures = {"final", *wanted_measures(cells), *(cell.measure for cell in cells if "." in cell.measure)}
    return tuple(seed for seed in request.seeds if not measures <= record.numbers(seed).keys())


def target_cells(cells: Sequence[TableCell]) -> list[TableCell]:
    """Return FedAvg's cells, whose final accuracy defines "rounds" and "sent" of the given cells."""
    relative = [cell for cell in cells if cell.measure in ("rounds", "sent")]
    return [replace(c, row="fedavg", measure="last100", setting={**c.setting, "method": FedAvg()}) for c in relative]


def training_jobs(
    cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest, prepared_only: bool = True
) -> list[TrainingJob]:
    """Return one job for each setting of which a seed is missing.

    Args:
        cells: cells of any tables.
        stored: what was trained before.
        request: the seeds that cells should have.
        prepared_only: leave out cells whose data set is not prepared on this machine.
    """
    by_setting: dict[str, list[TableCell]] = {}
    for cell in [*cells, *target_cells(cells)]:
        possible = cell.measure != "models" and not cell.unavailable
        if possible and (not prepared_only or data_prepared(cell, request.dataset)):
            by_setting.setdefault(experiment_key(stored.experiment(cell)), []).append(cell)
    fields = {"engine": request.engine, "device": request.device, "precision": request.precision}
    missing = [(alike, missing_seeds(alike, stored, request)) for alike in by_setting.values()]
    return [TrainingJob(alike, stored.experiment(alike[0], seeds=seeds, **fields)) for alike, seeds in missing if seeds]


def group_jobs(jobs: Sequence[TrainingJob]) -> dict[str, list[TrainingJob]]:
    """Group jobs that differ only in the partition and the seeds; each job of a group gets the probes of all.

    The key of a group is the experiment_key of its jobs without the partition.
    """
    groups: dict[str, list[TrainingJob]] = {}
    for job in jobs:
        groups.setdefault(experiment_key(job.experiment, without=PARTITION), []).append(job)
    return {key: _with_probes(group) for key, group in groups.items()}


def _with_probes(group: list[TrainingJob]) -> list[TrainingJob]:
    probes = {probe for job in group for probe in wanted_probes(job.cells)}
    every = max(1, group[0].experiment.rounds // PROBE_TIMES)
    fields: dict[str, Any] = {"probes": tuple(sorted(probes)), "probe_every": every, "eval_every": math.gcd(every, 10)}
    return [job._replace(experiment=replace(job.experiment, **fields)) if probes else job for job in group]


class BudgetSpent(Exception):
    """The deadline has passed. The run folders hold the rounds trained so far."""


def train_group(group: Sequence[TrainingJob], request: ReproduceRequest, log: Callable[[str], None]) -> None:
    """Train a group of jobs and store their records.

    Args:
        group: jobs that differ only in the partition and the seeds.
        request: folders and deadline.
        log: receives lines about the progress.

    Raises BudgetSpent at the end of the round in which the deadline passes.
    """
    folders = [request.run_folder(job) for job in group]
    label = group[0].label + (f" and {len(group) - 1} more" if len(group) > 1 else "")
    watch = progress_watcher(label, group[0].experiment.rounds, request.deadline, log)
    results = _train([job.experiment for job in group], folders, watch)
    together = sum(len(job.experiment.seeds) for job in group)
    for job, folder, result in zip(group, folders, results, strict=True):
        write_record(request.results, _record(job, folder, result, together, request))


def progress_watcher(label: str, rounds: int, deadline: float, log: Callable[[str], None]) -> Watcher:
    """Return a function to call after every round: it logs progress and raises BudgetSpent after the deadline."""

    def after_round(round: int, rows: list[dict[str, Any]]) -> None:
        if rows and round % max(1, rounds // 10) == 0:
            log(f"{label}: round {round} of {rounds}, accuracy {rows[0]['accuracy']:.1%}")
        if time.monotonic() >= deadline:
            raise BudgetSpent(f"stopped after round {round}; the same command continues from there")

    return after_round


def _train(experiments: Sequence[Experiment], folders: Sequence[Path], watch: Watcher) -> list[Result]:
    """Train the experiments together; the result of one whose run folder is complete is read from there."""
    done = {n: read_stored_run(folder).result for n, folder in enumerate(folders) if (folder / "result.json").exists()}
    left = [n for n in range(len(folders)) if n not in done]
    if left:
        new = run_together([experiments[n] for n in left], [folders[n] for n in left], resume=True, watch=watch)
        done |= dict(zip(left, new, strict=True))
    return [result for n in range(len(folders)) if (result := done[n])]


def _record(job: TrainingJob, folder: Path, result: Result, together: int, request: ReproduceRequest) -> StoredRecord:
    """Return what is stored of a finished job; `together` is the number of runs that were trained together."""
    experiment, seeds = job.experiment, job.experiment.seeds
    probed = [cell.measure for cell in job.cells if "." in cell.measure]
    extra = final_model_numbers(folder, wanted_measures(job.cells), seeds, request.device)
    rows = {
        str(seed): {
            "numbers": {**dict.fromkeys(probed), **accuracy_numbers(result, seed, experiment), **extra[seed]},
            "diverged": seed in result.diverged_seeds,
            "curve": thinned_curve(result, seed),
            "run": 0,
        }
        for seed in seeds
    }
    run = {
        "seeds": list(seeds),
        "rounds": result.rounds,
        "seconds": result.seconds,
        "together": together,
        "client_steps_per_second": result.client_steps_per_second,
        "precision": _precision(experiment),
        "data": request.data_text(experiment),
        "commit": code_commit(),
        "versions": result.versions,
    }
    name = request.record_name(job.cells[0])
    return StoredRecord(name, experiment_to_dict(experiment), experiment.rounds, rows, [run])


def _precision(experiment: Experiment) -> str:
    """Return the precision that was used, also where "auto" was asked for."""
    automatic = "tf32" if choose_device(experiment.device).type == "cuda" else "fp32"
    return automatic if experiment.precision == "auto" else experiment.precision


def code_commit() -> str | None:
    """Return the git commit of this code, with "-dirty" if files differ from it; None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
