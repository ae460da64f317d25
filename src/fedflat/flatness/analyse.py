"""Measure finished runs and write the results beside them: analysis/NAME.json and analysis/NAME.csv."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.data.dataset import Dataset
from fedflat.errors import UserError, mention
from fedflat.files import disk_failed
from fedflat.flatness.finished_run import AnalysisSettings, FinishedRun
from fedflat.flatness.measures import MEASUREMENTS, Measurement, ModelToMeasure, measure_barrier, measure_trajectories
from fedflat.options import check, normalised
from fedflat.progress import LogTicker
from fedflat.runs.config import method_to_dict
from fedflat.runs.folder import write_atomically
from fedflat.runs.read import Folders, list_folders, run_folders_in
from fedflat.runs.result import software_versions
from fedflat.runs.threads import choose_threads, restore_threads


def json_values(value: Any) -> Any:
    """Convert a value for JSON: tensors become lists, numbers that are not finite become None."""
    if isinstance(value, Tensor):
        return json_values(value.tolist())
    if isinstance(value, Mapping):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_measurement(folder: Path, name: str, document: Mapping[str, Any], by_seed: Mapping[int, Measurement]) -> None:
    """Write the document to folder/NAME.json and the columns of every seed to folder/NAME.csv."""
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{name}.csv", csv_text(by_seed))
    write_atomically(folder / f"{name}.json", json.dumps(document, allow_nan=False) + "\n")


def csv_text(by_seed: Mapping[int, Measurement]) -> str:
    """Return the columns of all seeds as CSV, with the seed as first column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, (seed, measurement) in enumerate(by_seed.items()):
        columns = json_values(measurement.columns)
        if number == 0:
            writer.writerow(["seed", *columns])
        writer.writerows([seed, *row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


class Analysis(NamedTuple):
    """What `analyse` measured.

    Args:
        documents: the contents of the JSON files, by the run's name and the measurement's name.
        problems: why other runs and measurements are missing, one UserError each; str() gives the text.
    """

    documents: dict[str, dict[str, dict[str, Any]]]
    problems: list[UserError]


def analyse(
    runs: Folders, settings: AnalysisSettings | None = None, dataset: Dataset | None = None, model: Any = None
) -> Analysis:
    """Measure how flat the loss is around the last models of runs, as `fedflat analyse` does.

    The results are written to analysis/NAME.json and analysis/NAME.csv in each run's folder.

    Args:
        runs: a run's folder, or several; a folder of runs stands for its runs.
        settings: what is measured, and how (fedflat.flatness.AnalysisSettings).
        dataset: the data of the runs, if they were given in Python and config.yaml can only name them.
        model: the model of the runs, likewise.

    Returns what was written; runs that cannot be measured are left out and named in `problems`. Raises UserError if
    nothing could be measured.
    """
    paths, settings = list_folders(runs), normalised(settings or AnalysisSettings())
    check(settings)
    python_objects = {name: value for name, value in (("dataset", dataset), ("model", model)) if value is not None}
    finished, problems = _read_runs(paths, settings, python_objects)
    if not finished:
        raise _all_failed("nothing to measure", problems)
    analysis = Analysis({run.name: {} for run in finished}, problems)
    for name in ("barrier", "barriers"):
        if name in settings.what and len(finished) < 2:
            problems.append(UserError(None, name, "needs two runs, and there is only one"))
    ticker = LogTicker()
    for run, following in zip(finished, [*finished[1:], None], strict=True):
        with restore_threads():
            torch.set_num_threads(choose_threads(run.trained.experiment, run.trained.built, settings.batch_size))
            for job in _measurement_jobs(run, following, finished):
                ticker.tell(f"{run.name}: measuring {job.name}")
                _measure_and_write(job, run, analysis)
    if "trajectory" in settings.what and settings.plane == "shared":
        for run, job in _shared_plane_jobs(finished):
            ticker.tell(f"{run.name}: measuring trajectory")
            _measure_and_write(job, run, analysis)
    if not any(analysis.documents.values()):
        raise _all_failed("nothing was measured", problems)
    return analysis


def _all_failed(summary: str, problems: Sequence[UserError]) -> UserError:
    """Return one error with the texts of all problems; each interface writes the options in them in its own way."""
    return UserError(None, "analyse", "; ".join([summary, *(problem.message(mention) for problem in problems)]))


def _read_runs(
    paths: Sequence[Path], settings: AnalysisSettings, python_objects: Mapping[str, Any]
) -> tuple[list[FinishedRun], list[UserError]]:
    """Return the runs that can be measured, and why the others cannot. Runs of equal names are named by their paths."""
    runs, problems = [], []
    for path in (folder for given in paths for folder in run_folders_in(given)):
        try:
            runs.append(FinishedRun(path, settings, python_objects))
        except UserError as error:
            problems.append(error)
    names = [run.name for run in runs]
    for run in runs:
        run.name = str(run.path) if names.count(run.name) > 1 else run.name
    return runs, problems


class MeasurementJob(NamedTuple):
    """One measurement of one run.

    Args:
        name: the measurement's name.
        models: the run's models, one for each seed.
        measure: the function that measures a model.
        facts: further entries of its JSON document.
    """

    name: str
    models: list[ModelToMeasure]
    measure: Callable[[ModelToMeasure], Measurement]
    facts: dict[str, Any]


def _measurement_jobs(
    run: FinishedRun, following: FinishedRun | None, runs: Sequence[FinishedRun]
) -> Iterator[MeasurementJob]:
    """Yield the measurements of a run. All runs with the same architecture share random directions."""
    alike = _same_shapes(run, runs)
    alike_params = [trial.server.params for other in alike for trial in other.trials]
    models = [ModelToMeasure(run, trial, alike_params) for trial in run.trials]
    for name in dict.fromkeys(run.settings.what):
        if name == "barriers":
            others = alike[alike.index(run) + 1 :]
            if others:
                yield _barriers_job(models, others)
        elif name == "trajectory" and run.settings.plane == "shared":
            continue  # measured after all others, together
        elif name != "barrier":
            facts = {"directions_shared_by": [other.name for other in alike]}
            yield MeasurementJob(name, models, MEASUREMENTS[name], facts)
        elif following:
            yield _barrier_job(models, following, following in alike)


def _same_shapes(run: FinishedRun, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs with the same architecture as a run."""
    return [other for other in runs if other.task.shapes == run.task.shapes]


def _shared_plane_jobs(runs: Sequence[FinishedRun]) -> Iterator[tuple[FinishedRun, MeasurementJob]]:
    """Yield the measurement of each run's trajectory; runs of one architecture that have a seed share its plane."""
    groups: list[list[FinishedRun]] = []
    for run in runs:
        groups += [] if any(run in group for group in groups) else [_same_shapes(run, runs)]
    for alike in groups:
        measure = functools.partial(_measure_on_shared_plane, alike, {})
        for run in alike:
            models = [ModelToMeasure(run, trial, []) for trial in run.trials]
            yield run, MeasurementJob("trajectory", models, measure, {"plane_shared_by": [each.name for each in alike]})


def _measure_on_shared_plane(
    runs: Sequence[FinishedRun], found: dict[tuple[str, int], Measurement], model: ModelToMeasure
) -> Measurement:
    """Return a model's trajectory; `found` keeps those of the other runs that were measured with it."""
    seed = model.trial.seed
    if (model.run.name, seed) not in found:
        models = [ModelToMeasure(run, trial, []) for run in runs for trial in run.trials if trial.seed == seed]
        names = [(each.run.name, seed) for each in models]
        found |= dict(zip(names, measure_trajectories(models), strict=True))
    return found[model.run.name, seed]


def _barrier_job(models: list[ModelToMeasure], following: FinishedRun, alike: bool) -> MeasurementJob:
    """Return the measurement of the barriers to the models of the next run that have the same seeds."""
    others = {trial.seed: trial.server.params for trial in following.trials if alike}
    common = [model for model in models if model.trial.seed in others]
    return MeasurementJob(
        "barrier", common, lambda model: measure_barrier(model, others[model.trial.seed]), {"to": following.name}
    )


def _barriers_job(models: list[ModelToMeasure], others: Sequence[FinishedRun]) -> MeasurementJob:
    """Return the measurement of the barriers to the models of all later runs that have the same seed."""
    params = {(other.name, trial.seed): trial.server.params for other in others for trial in other.trials}

    def measure(model: ModelToMeasure) -> Measurement:
        to = [other.name for other in others if (other.name, model.trial.seed) in params]
        found = [measure_barrier(model, params[name, model.trial.seed]).numbers for name in to]
        columns = {"to": to, "barrier": [numbers["barrier"] for numbers in found]}
        return Measurement({}, columns | {"distance": [numbers["distance"] for numbers in found]})

    return MeasurementJob("barriers", models, measure, {})


def _measure_and_write(job: MeasurementJob, run: FinishedRun, analysis: Analysis) -> None:
    """Measure every model of the job and write the results; add to the problems if that fails."""
    start = time.perf_counter()
    try:
        if not job.models:
            raise UserError(None, job.facts["to"], "has no seed in common with this run, or another model")
        by_seed = {model.trial.seed: job.measure(model) for model in job.models}
        document = _document(job, run, by_seed) | {"seconds": round(time.perf_counter() - start, 3)}
        write_measurement(run.path / "analysis", job.name, document, by_seed)
        analysis.documents[run.name][job.name] = document
    except (UserError, OSError) as error:
        if disk_failed(error):
            raise
        problem = error if isinstance(error, UserError) else str(error)
        analysis.problems.append(UserError(None, f"{run.name}: {job.name}", problem))


def _document(job: MeasurementJob, run: FinishedRun, by_seed: Mapping[int, Measurement]) -> dict[str, Any]:
    """Return the JSON document of one measurement."""
    seeds = {
        str(seed): {**run.model_metrics[seed], **m.numbers, **(m.columns if m.arrays is None else m.arrays)}
        for seed, m in by_seed.items()
    }
    facts = {
        "what": job.name,
        "run": run.name,
        "method": method_to_dict(run.trained.experiment.method),
        "parameters": run.task.size,
        "samples": next(iter(by_seed.values())).samples or run.data.sample_count(),
        **job.facts,
        "settings": dataclasses.asdict(run.settings),
        "versions": software_versions(),
        "seeds": seeds,
    }
    return json_values(facts)
