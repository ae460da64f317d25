"""Measure finished runs and write the results beside them: analysis/NAME.json and analysis/NAME.csv."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedflat.data.dataset import Dataset
from fedflat.errors import UserError
from fedflat.flatness.files import plain, write
from fedflat.flatness.measures import MEASURES, Case, Measured, measure_barrier
from fedflat.flatness.settings import Settings
from fedflat.flatness.subject import Subject
from fedflat.options import check
from fedflat.progress import LogTicker
from fedflat.runs.config import method_to_dict
from fedflat.runs.read import run_folders_in
from fedflat.runs.result import software_versions


class Analysed(NamedTuple):
    """Documents as they were written, by run and measurement, and why others are missing."""

    documents: dict[str, dict[str, dict[str, Any]]]
    problems: list[str]


def analyse(
    paths: Sequence[Path], settings: Settings | None = None, dataset: Dataset | None = None, model: Any = None
) -> Analysed:
    """Measure every run in `paths`; a run that cannot be measured is named among the problems and left out.

    `dataset` and `model` stand in where the runs' data or model are objects that config.yaml cannot name.
    """
    settings = settings or Settings()
    check(settings)
    own = {name: value for name, value in (("dataset", dataset), ("model", model)) if value is not None}
    subjects, problems = read_subjects(paths, settings, own)
    if not subjects:
        raise UserError("analyse: nothing to measure; " + "; ".join(problems))
    done = Analysed({subject.name: {} for subject in subjects}, problems)
    if "barrier" in settings.what and len(subjects) < 2:
        problems.append("barrier: it lies between runs, and there is only one")
    pulse = LogTicker()
    for subject, following in pairwise([*subjects, None]):
        assert subject
        for job in _jobs(subject, following, subjects):
            pulse.tell(f"{subject.name}: measuring {job.what}")
            _perform(job, subject, done)
    if not any(done.documents.values()):
        raise UserError("analyse: nothing was measured; " + "; ".join(problems))
    return done


def read_subjects(paths: Sequence[Path], settings: Settings, own: Mapping[str, Any]) -> tuple[list[Subject], list[str]]:
    """The runs that can be measured, with names that tell them apart, and why the others cannot."""
    subjects, problems = [], []
    for path in (run for given in paths for run in run_folders_in(given)):
        try:
            subjects.append(Subject(path, settings, own))
        except UserError as error:
            problems.append(str(error))
    names = [subject.name for subject in subjects]
    for subject in subjects:
        subject.name = str(subject.path) if names.count(subject.name) > 1 else subject.name
    return subjects, problems


class Job(NamedTuple):
    """One measurement of one run: of which models, how, and what else its document says."""

    what: str
    cases: list[Case]
    measure: Callable[[Case], Measured]
    facts: dict[str, Any]


def _jobs(subject: Subject, following: Subject | None, subjects: Sequence[Subject]) -> Iterator[Job]:
    """Everything asked for; models that are alike share random directions, the barrier leads to the next run."""
    alike = [other for other in subjects if other.task.shapes == subject.task.shapes]
    peers = [trial.server.params for other in alike for trial in other.trials]
    cases = [Case(subject, trial, peers) for trial in subject.trials]
    for what in dict.fromkeys(subject.settings.what):
        if what != "barrier":
            yield Job(what, cases, MEASURES[what], {"directions_shared_by": [other.name for other in alike]})
        elif following:
            others = {trial.seed: trial.server.params for trial in following.trials if following in alike}
            common = [case for case in cases if case.trial.seed in others]
            yield Job(what, common, lambda case: measure_barrier(case, others[case.trial.seed]), {"to": following.name})


def _perform(job: Job, subject: Subject, done: Analysed) -> None:
    """Measure, write and remember, or say why not."""
    start = time.perf_counter()
    try:
        if not job.cases:
            raise UserError(f"{job.facts['to']} has no seed in common or another model")
        found = {case.trial.seed: job.measure(case) for case in job.cases}
        document = _document(job, subject, found) | {"seconds": round(time.perf_counter() - start, 3)}
        write(subject.path / "analysis", job.what, document, found)
        done.documents[subject.name][job.what] = document
    except (UserError, OSError) as error:
        done.problems.append(f"{subject.name}: {job.what}: {error}")


def _document(job: Job, subject: Subject, found: Mapping[int, Measured]) -> dict[str, Any]:
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
    return plain(facts)
