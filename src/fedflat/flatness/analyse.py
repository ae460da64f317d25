"""Measure finished runs and write the results beside them: analysis/NAME.json and analysis/NAME.csv."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedflat.data.dataset import Dataset
from fedflat.errors import UserError
from fedflat.flatness.finished_run import AnalysisSettings, FinishedRun
from fedflat.flatness.measures import MEASURES, Measurement, ModelToMeasure, measure_barrier
from fedflat.options import check
from fedflat.progress import LogTicker
from fedflat.runs.config import method_to_dict
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import run_folders_in
from fedflat.runs.result import software_versions


def json_values(value: Any) -> Any:
    """Tensors as lists, numbers that are not finite as None."""
    if isinstance(value, Tensor):
        return json_values(value.tolist())
    if isinstance(value, Mapping):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_measurement(folder: Path, what: str, document: Mapping[str, Any], found: Mapping[int, Measurement]) -> None:
    """folder/what.json with everything, folder/what.csv with the columns of every seed."""
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{what}.csv", csv_text(found))
    write_atomically(folder / f"{what}.json", json.dumps(document, allow_nan=False) + "\n")


def csv_text(found: Mapping[int, Measurement]) -> str:
    """CSV with a column for the seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for first, (seed, measured) in enumerate(found.items()):
        columns = json_values(measured.columns)
        if first == 0:
            writer.writerow(["seed", *columns])
        writer.writerows([seed, *row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


class Analysis(NamedTuple):
    """Documents as they were written, by run and measurement, and why others are missing."""

    documents: dict[str, dict[str, dict[str, Any]]]
    problems: list[str]


def analyse_runs(
    paths: Sequence[Path], settings: AnalysisSettings | None = None, dataset: Dataset | None = None, model: Any = None
) -> Analysis:
    """Measure every run in `paths`; a run that cannot be measured is named among the problems and left out.

    `dataset` and `model` stand in where the runs' data or model are objects that config.yaml cannot name.
    """
    settings = settings or AnalysisSettings()
    check(settings)
    own = {name: value for name, value in (("dataset", dataset), ("model", model)) if value is not None}
    subjects, problems = read_finished_runs(paths, settings, own)
    if not subjects:
        raise UserError("analyse: nothing to measure; " + "; ".join(problems))
    done = Analysis({subject.name: {} for subject in subjects}, problems)
    if "barrier" in settings.what and len(subjects) < 2:
        problems.append("barrier: it lies between runs, and there is only one")
    pulse = LogTicker()
    for subject, following in pairwise([*subjects, None]):
        assert subject
        for job in _measurement_jobs(subject, following, subjects):
            pulse.tell(f"{subject.name}: measuring {job.what}")
            _measure_and_write(job, subject, done)
    if not any(done.documents.values()):
        raise UserError("analyse: nothing was measured; " + "; ".join(problems))
    return done


def read_finished_runs(
    paths: Sequence[Path], settings: AnalysisSettings, own: Mapping[str, Any]
) -> tuple[list[FinishedRun], list[str]]:
    """The runs that can be measured, with names that tell them apart, and why the others cannot."""
    subjects, problems = [], []
    for path in (run for given in paths for run in run_folders_in(given)):
        try:
            subjects.append(FinishedRun(path, settings, own))
        except UserError as error:
            problems.append(str(error))
    names = [subject.name for subject in subjects]
    for subject in subjects:
        subject.name = str(subject.path) if names.count(subject.name) > 1 else subject.name
    return subjects, problems


class MeasurementJob(NamedTuple):
    """One measurement of one run: of which models, how, and what else its document says."""

    what: str
    cases: list[ModelToMeasure]
    measure: Callable[[ModelToMeasure], Measurement]
    facts: dict[str, Any]


def _measurement_jobs(
    subject: FinishedRun, following: FinishedRun | None, subjects: Sequence[FinishedRun]
) -> Iterator[MeasurementJob]:
    """Everything asked for; models that are alike share random directions, the barrier leads to the next run."""
    alike = [other for other in subjects if other.task.shapes == subject.task.shapes]
    peers = [trial.server.params for other in alike for trial in other.trials]
    cases = [ModelToMeasure(subject, trial, peers) for trial in subject.trials]
    for what in dict.fromkeys(subject.settings.what):
        if what != "barrier":
            yield MeasurementJob(what, cases, MEASURES[what], {"directions_shared_by": [other.name for other in alike]})
        elif following:
            others = {trial.seed: trial.server.params for trial in following.trials if following in alike}
            common = [case for case in cases if case.trial.seed in others]
            yield MeasurementJob(
                what, common, lambda case: measure_barrier(case, others[case.trial.seed]), {"to": following.name}
            )


def _measure_and_write(job: MeasurementJob, subject: FinishedRun, done: Analysis) -> None:
    """Measure, write and remember, or say why not."""
    start = time.perf_counter()
    try:
        if not job.cases:
            raise UserError(f"{job.facts['to']} has no seed in common or another model")
        found = {case.trial.seed: job.measure(case) for case in job.cases}
        document = _document(job, subject, found) | {"seconds": round(time.perf_counter() - start, 3)}
        write_measurement(subject.path / "analysis", job.what, document, found)
        done.documents[subject.name][job.what] = document
    except (UserError, OSError) as error:
        done.problems.append(f"{subject.name}: {job.what}: {error}")


def _document(job: MeasurementJob, subject: FinishedRun, found: Mapping[int, Measurement]) -> dict[str, Any]:
    """The JSON of one measurement."""
    seeds = {
        str(seed): {**subject.scores[seed], **m.numbers, **(m.columns if m.arrays is None else m.arrays)}
        for seed, m in found.items()
    }
    facts = {
        "what": job.what,
        "run": subject.name,
        "method": method_to_dict(subject.run.experiment.method),
        "parameters": subject.task.size,
        "samples": next(iter(found.values())).samples or subject.data.samples(),
        **job.facts,
        "settings": dataclasses.asdict(subject.settings),
        "versions": software_versions(),
        "seeds": seeds,
    }
    return json_values(facts)
