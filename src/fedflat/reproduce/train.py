"""Train the cells that are missing, those together that can share an engine, and store each group when it ends."""

from __future__ import annotations

import hashlib
import math
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fedflat.data.catalogue import DATASETS
from fedflat.data.prepared import prepared_path
from fedflat.errors import UserError
from fedflat.methods.fedavg import FedAvg
from fedflat.reproduce.cells import (
    PARTITION,
    cell_experiment,
    cells_by_experiment,
    experiment_key,
    first_cell_like,
    on_other_dataset,
)
from fedflat.reproduce.results import StoredRecord, StoredResults, accuracy_numbers, thinned_curve, write_record
from fedflat.reproduce.table import TableCell
from fedflat.runs.build import choose_device
from fedflat.runs.config import dump_experiment, experiment_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import read_metrics
from fedflat.runs.read import read_stored_run
from fedflat.runs.result import Result
from fedflat.runs.train_together import run_together

DECISIVE = ("method", "model", "dataset", "cohort", "local_epochs", "batch_size")


ENOUGH = 100  # rounds from which on a run's time is not mostly that of its start


def estimate_seconds(
    group: Sequence[TrainingJob], request: ReproduceRequest, stored: StoredResults, hardware: str
) -> float | None:
    """Seconds for what is left of a group; None where nothing like it is stored.

    The least time per round and seed of stored runs, times the rounds and seeds that are left.
    """
    rates = _rates(group[0], stored, hardware)
    left = sum(len(j.experiment.seeds) * (j.experiment.rounds - rounds_played(request.folder(j))) for j in group)
    return min(rates) * left if rates else None


def _rates(job: TrainingJob, stored: StoredResults, hardware: str) -> list[float]:
    """Seconds per round and seed of stored runs with the same method, model and data."""
    plain = experiment_to_dict(job.experiment)
    records = [record for same in stored.records.values() for record in same.values()]
    fitting = [record for record in records if all(record.config[name] == plain[name] for name in DECISIVE)]
    runs = [run for record in fitting for run in record.runs if run["versions"]["hardware"] == hardware]
    return [run["seconds"] / run["rounds"] / run["together"] for run in runs if run["rounds"] >= ENOUGH]


def rounds_played(folder: Path) -> int:
    """The round up to which a run folder has metrics."""
    rows = read_metrics(folder / "metrics.jsonl")
    return int(rows[-1]["round"]) if rows else 0


RESERVE = 5.0  # seconds of a budget for writing results


PROBED = 10  # rounds of a run in which probes measure


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """How a table is to be reproduced."""

    results: Path = Path("results")
    runs: Path = Path("runs/reproduce")
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int | None = None
    dataset: str | None = None
    engine: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: str = "auto"
    data_note: str = ""
    deadline: float = float("inf")  # of time.monotonic()

    def changes(self, cell: TableCell) -> dict[str, Any]:
        """Fields of Experiment that differ from the paper's on purpose."""
        often = {"checkpoint_every": min(cell.setting["checkpoint_every"], max(1, (self.rounds or 0) // 10))}
        rounds = {} if self.rounds is None else {"rounds": self.rounds, **often}
        return {**rounds, **({} if self.dataset is None else on_other_dataset(cell, self.dataset))}

    def stored(self) -> StoredResults:
        """What there is under these changes."""
        return StoredResults(self.results, self.changes)

    def name(self, cell: TableCell) -> str:
        """The name under which a cell is stored; changes are part of it."""
        rounds = self.rounds if self.rounds != cell.setting["rounds"] else None
        marks = [f"@{self.dataset}"] * bool(self.dataset) + [f"@rounds-{rounds}"] * bool(rounds)
        return " ".join([first_cell_like(cell).name, *marks])

    def folder(self, job: TrainingJob) -> Path:
        """The run folder of a job: another one for every configuration."""
        digest = hashlib.sha256(dump_experiment(job.experiment).encode()).hexdigest()[:8]
        stored = first_cell_like(job.cells[0])
        return self.runs / stored.table / f"{'_'.join(stored.words)}-{digest}"

    def left(self) -> float:
        """Seconds until the deadline, less what writing takes."""
        return self.deadline - time.monotonic() - RESERVE

    def fits(self, seconds: float) -> bool:
        """Whether what is thought to take so long ends in time."""
        return 1.05 * seconds <= self.left()


class TrainingJob(NamedTuple):
    """Cells that are trained alike, and the experiment with what is missing of them."""

    cells: list[TableCell]
    experiment: Experiment

    @property
    def label(self) -> str:
        """The first cell's words."""
        return " ".join(self.cells[0].words)


def data_prepared(cell: TableCell, dataset: str | None = None) -> bool:
    """Whether the data of a cell are here."""
    name = dataset or cell.setting["dataset"]
    return name not in DATASETS or prepared_path(name).exists()


def missing_seeds(cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest) -> tuple[int, ...]:
    """The seeds of which something is missing that these cells, trained alike, ask for."""
    trained = stored.experiment(cells[0])
    record = stored.record(trained)
    if record is None or record.rounds != trained.rounds:
        return request.seeds
    measures = {"final", *wanted_measures(cells), *(cell.measure for cell in cells if "." in cell.measure)}
    return tuple(seed for seed in request.seeds if not measures <= record.numbers(seed).keys())


def target_cells(cells: Sequence[TableCell]) -> list[TableCell]:
    """FedAvg's cells, whose final accuracies others are to reach."""
    racing = [cell for cell in cells if cell.measure in ("rounds", "sent")]
    return [replace(c, row="fedavg", measure="last100", setting={**c.setting, "method": FedAvg()}) for c in racing]


def training_jobs(cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest) -> list[TrainingJob]:
    """One job for everything that is trained once, of cells that can be trained here and are not complete."""
    found: dict[str, list[TableCell]] = {}
    for cell in [*cells, *target_cells(cells)]:
        if cell.measure != "models" and not cell.unavailable and data_prepared(cell, request.dataset):
            found.setdefault(experiment_key(stored.experiment(cell)), []).append(cell)
    how = {"engine": request.engine, "device": request.device, "precision": request.precision}
    lacking = [(alike, missing_seeds(alike, stored, request)) for alike in found.values()]
    return [TrainingJob(alike, stored.experiment(alike[0], seeds=seeds, **how)) for alike, seeds in lacking if seeds]


def group_jobs(jobs: Sequence[TrainingJob]) -> list[list[TrainingJob]]:
    """Jobs that differ in nothing but the partition and the seeds; all of a group take the probes that any asks for."""
    found: dict[str, list[TrainingJob]] = {}
    for job in jobs:
        found.setdefault(experiment_key(job.experiment, without=PARTITION), []).append(job)
    return [_probing(group) for group in found.values()]


def _probing(group: list[TrainingJob]) -> list[TrainingJob]:
    asked = {probe for job in group for probe in wanted_probes(job.cells)}
    every = max(1, group[0].experiment.rounds // PROBED)
    fields: dict[str, Any] = {"probes": tuple(sorted(asked)), "probe_every": every, "eval_every": math.gcd(every, 10)}
    return [job._replace(experiment=replace(job.experiment, **fields)) if asked else job for job in group]


Device = Literal["auto", "cpu", "cuda"]


Found = dict[int, dict[str, float | None]]  # by seed and measure


ANALYSED = {  # measure → what `fedflat analyse` measures, and the name of the number there
    "lambda1": ("hessian", "lambda1"),
    "ratio": ("hessian", "lambda1_over_lambda5"),
    "lpf": ("lpf", "lpf"),
    "discrepancy": ("discrepancy", "discrepancy"),
    "lambda-local": ("local", "mean_lambda_local"),
    "lambda-global": ("local", "mean_lambda_global"),
}


PERSONAL = {"tuned": "-FT", "knn": "kNN-Per", "alone": "local-only"}


FREE = ("drift", "norm", "fedgf", "fedgloss")  # probes that cost nothing, and are taken whenever a table asks for them


def wanted_measures(cells: Sequence[TableCell]) -> set[str]:
    """Measures of final models that these cells ask for, and λ1, which costs little, if any cell trained alike does."""
    cheap = {"lambda1"} & {cell.measure for cell in cells_by_experiment()[experiment_key(cell_experiment(cells[0]))]}
    return cheap | {cell.measure for cell in cells if cell.measure in ANALYSED or _scheme(cell.measure) in PERSONAL}


def wanted_probes(cells: Sequence[TableCell]) -> set[str]:
    """Probes that these cells ask for, and the free ones for which any cell trained alike asks."""
    every = {_probe(cell.measure) for cell in cells_by_experiment()[experiment_key(cell_experiment(cells[0]))]}
    return {_probe(cell.measure) for cell in cells if _probe(cell.measure)} | (every & set(FREE))


def _probe(measure: str) -> str:
    """drift for drift.global_local, '' for what no probe measures."""
    return measure.partition(".")[0] if "." in measure else ""


def _scheme(measure: str) -> str:
    return measure.partition("-")[0]


def extra_measures(folder: Path, measures: Collection[str], seeds: Iterable[int], device: Device) -> Found:
    """The measures of every seed; None where a model cannot be measured."""
    found: Found = {seed: dict.fromkeys(sorted(measures)) for seed in seeds}
    with suppress(UserError):  # models that diverged have no curvature
        if analysed := [m for m in measures if m in ANALYSED]:
            _analyse(folder, analysed, device, found)
        if personal := [m for m in measures if m not in ANALYSED]:
            _personalise(folder, personal, found)
    return found


def _analyse(folder: Path, measures: Collection[str], device: Device, found: Found) -> None:
    """λ1 by power iteration, as FedGloSS has it, unless λ5 is wanted too."""
    from fedflat.flatness.analyse import analyse_runs
    from fedflat.flatness.finished_run import AnalysisSettings

    what: Any = tuple(dict.fromkeys(ANALYSED[m][0] for m in measures))
    five = "ratio" in measures
    settings = AnalysisSettings(
        what=what, solver="lanczos" if five else "power", top=5 if five else 1, probes=2, device=device
    )
    (documents,) = analyse_runs([folder], settings).documents.values()
    for measure, (name, number) in ((m, ANALYSED[m]) for m in measures):
        for seed, numbers in documents.get(name, {}).get("seeds", {}).items():
            found[int(seed)][measure] = numbers[number]


def _personalise(folder: Path, measures: Collection[str], found: Found) -> None:
    """Mean accuracies of clients, in percent."""
    from fedflat.personal.fine_tuning import personalise

    rows = personalise(folder, epochs=(1, 5), alone="alone" in measures)
    for measure in measures:
        scheme, _, epochs = measure.partition("-")
        fits: Callable[[Any], bool] = lambda row: PERSONAL[scheme] in row.scheme and epochs in ("", str(row.epochs))  # noqa: E731
        for row in filter(fits, rows):
            for seed, clients in row.clients.items():
                found[seed][measure] = 100 * sum(clients.values()) / len(clients)


MEASURED = (3, 8)  # rounds of a call between which its speed is measured, after what is slow only once


Say = Callable[[str], None]


class BudgetSpent(Exception):
    """The time is over; the run folders keep what was trained up to their last checkpoint."""


class TooLong(Exception):
    """A group would not end in time, and others may."""


class TimeBudget:
    """Estimates a group's time from its first rounds, and stops it when the budget is spent.

    Where there are `others` that may end in time, one that would not is stopped at once.
    """

    def __init__(self, label: str, rounds: int, request: ReproduceRequest, say: Say, others: bool) -> None:
        self.label, self.rounds, self.request, self.say, self.others = label, rounds, request, say, others
        self.calls, self.began = 0, (0.0, 0)

    def __call__(self, round: int, rows: list[dict[str, Any]]) -> None:
        """After every round."""
        self.calls += 1
        if self.calls in MEASURED and torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.calls == MEASURED[0]:
            self.began = (time.monotonic(), round)
        if self.calls == MEASURED[1]:
            self._foresee(round)
        if self.calls > MEASURED[1] and round % max(1, self.rounds // 10) == 0 and rows:
            self.say(f"{self.label}: round {round} of {self.rounds}, accuracy {rows[0]['accuracy']:.1%}")
        if self.request.left() < 0:
            raise BudgetSpent(f"stopped in round {round}; the same command goes on from the last checkpoint")

    def _foresee(self, round: int) -> None:
        """Say how long the rest will take; give way to others if that is too long."""
        start, first = self.began
        rest = (time.monotonic() - start) / (round - first) * (self.rounds - round)
        self.say(f"{self.label}: about {duration_text(rest)} more")
        if self.others and not self.request.fits(rest):
            raise TooLong(f"put off, {duration_text(self.request.left())} left")


def duration_text(seconds: float) -> str:
    """A time for people."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def train_group(group: Sequence[TrainingJob], request: ReproduceRequest, say: Say, others: bool = False) -> None:
    """Train a group and store its records; raises BudgetSpent, and TooLong where others wait."""
    folders = [request.folder(job) for job in group]
    watch = TimeBudget(_label(group), group[0].experiment.rounds, request, say, others)
    results = _train([job.experiment for job in group], folders, watch)
    together = sum(len(job.experiment.seeds) for job in group)
    for job, folder, result in zip(group, folders, results, strict=True):
        write_record(request.results, _record(job, folder, result, together, request))


def _train(experiments: Sequence[Experiment], folders: Sequence[Path], watch: TimeBudget) -> list[Result]:
    """The results of all; those whose folder is complete are read."""
    done = {n: read_stored_run(folder).result for n, folder in enumerate(folders) if (folder / "result.json").exists()}
    left = [n for n in range(len(folders)) if n not in done]
    if left:
        new = run_together([experiments[n] for n in left], [folders[n] for n in left], resume=True, watch=watch)
        done |= dict(zip(left, new, strict=True))
    return [result for n in range(len(folders)) if (result := done[n])]


def _label(group: Sequence[TrainingJob]) -> str:
    """A group in words: its first cell, and how many more."""
    return group[0].label + (f" and {len(group) - 1} more" if len(group) > 1 else "")


def _record(job: TrainingJob, folder: Path, result: Result, together: int, request: ReproduceRequest) -> StoredRecord:
    """What is stored of one experiment."""
    seeds, trained = job.experiment.seeds, job.experiment
    asked = [cell.measure for cell in job.cells if "." in cell.measure]
    extra = extra_measures(folder, wanted_measures(job.cells), seeds, request.device)
    rows = {
        str(seed): {
            "numbers": {**dict.fromkeys(asked), **accuracy_numbers(result, seed, trained), **extra[seed]},
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
        "precision": _precision(trained),
        "data": request.data_note or str(trained.dataset),
        "commit": code_commit(),
        "versions": result.versions,
    }
    return StoredRecord(request.name(job.cells[0]), experiment_to_dict(trained), trained.rounds, rows, [run])


def _precision(experiment: Experiment) -> str:
    """What auto meant."""
    automatic = "tf32" if choose_device(experiment.device).type == "cuda" else "fp32"
    return automatic if experiment.precision == "auto" else experiment.precision


def code_commit() -> str | None:
    """The commit of this code, with a mark where files differ from it; None outside a repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
