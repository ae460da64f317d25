"""Read the folders of runs: configuration, metrics and result for tables and figures, or the trained models.

`read_stored_run` reads what a report shows. It accepts options and methods that this version does not know, and runs
that are unfinished. `read_trained_run` loads the models of the last checkpoint, for which everything has to be known.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from fedflat.core.local_training import method_state
from fedflat.core.metric import SHARES, MainMetric, metric_name
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.state import tree_map
from fedflat.core.tasks import TASKS
from fedflat.engine.rounds import Trial, has_diverged
from fedflat.errors import UserError
from fedflat.methods.running_averages import is_remembered, with_server_statistics
from fedflat.options import check
from fedflat.runs.build import BuiltRun, build_run
from fedflat.runs.checkpoint import (
    checkpoint_config,
    checkpoint_mismatch,
    data_changed,
    load_tensors,
    trained_seeds,
    trial_tensors,
)
from fedflat.runs.code_files import changed_files, code_checksums
from fedflat.runs.config import MAY_GROW, dump_experiment, load_experiment, parse_yaml, same_run
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.folder import check_run_files, has_training
from fedflat.runs.metrics import is_number, read_metrics
from fedflat.runs.result import Result

DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading damaged files raises
Folders = str | Path | Sequence[str | Path]  # one run folder, or several
T = TypeVar("T")


@dataclass(frozen=True)
class StoredRun:
    """What the folder of a run contains, except for its checkpoint.

    Attributes:
        name: the folder's name, or its path where several runs have the same name.
        path: the folder.
        config: the options in config.yaml.
        rows: the rows of metrics.jsonl.
        result: the result, None while the run is unfinished.
    """

    name: str
    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: Result | None

    @property
    def main_metric(self) -> MainMetric:
        """The task's main metric; of an unfinished run its direction is that of the task with this name."""
        if self.result:
            return self.result.main_metric
        task = TASKS.get(str(self.config.get("task", "")))
        name = metric_name(self.rows[0])
        return MainMetric(name, task.higher_is_better if task else name in SHARES)

    @property
    def evaluated_on(self) -> str:
        """Which samples metrics and loss are measured on: "test", or "validation" if training samples are held out."""
        return "validation" if self.config.get("validation") else "test"


def evaluated_on(runs: Sequence[StoredRun]) -> str:
    """Return which samples all runs are evaluated on: "test", "validation" or "test or validation"."""
    return " or ".join(sorted({run.evaluated_on for run in runs}))


def read_stored_run(folder: Path) -> StoredRun:
    """Read the folder of a run; raise UserError if it is not one, is damaged or has no metrics yet."""
    check_run_files(folder)
    config = _read_file(folder / "config.yaml", _parse_config)
    rows = _read_file(folder / "metrics.jsonl", read_metrics)
    result = _read_result(folder, rows) if (folder / "result.json").exists() else None
    if not rows:
        raise UserError(None, folder, "has no metrics yet")
    return StoredRun(Path(os.path.abspath(folder)).name, folder, {"cohort": 1, **config}, rows, result)


def _read_file(path: Path, parse: Callable[[Path], T]) -> T:
    """Return what `parse` reads from a file of a run; raise UserError with the names of folder and file if it fails."""
    try:
        return parse(path)
    except FileNotFoundError:
        raise UserError(None, path.parent, f"not a run folder ({path.name} is missing)") from None
    except DAMAGE:
        raise UserError(None, path.parent, f"damaged run folder ({path.name} cannot be used)") from None


def _parse_config(path: Path) -> dict[str, Any]:
    """Read config.yaml and check the options that this version knows."""
    config = parse_yaml(path.read_text(encoding="utf-8"))
    texts = [*config, *(config[name] for name in ("dataset", "model") if name in config)]
    if not isinstance(config["method"], str | Mapping) or not all(isinstance(text, str) for text in texts):
        raise ValueError(path)
    known: dict[str, Any] = {field.name: config[field.name] for field in fields(Setting) if field.name in config}
    check(Setting(**known))
    return config


def _read_result(folder: Path, rows: list[dict[str, Any]]) -> Result:
    """Read result.json; the history of a result are the rows of metrics.jsonl."""

    def parse(path: Path) -> Result:
        values = json.loads(path.read_text(encoding="utf-8"), parse_int=_parse_int)
        result = Result.from_json(values, rows)
        check(result)
        if not result.seeds:
            raise ValueError(path)
        return result

    return _read_file(folder / "result.json", parse)


def _parse_int(digits: str) -> int:
    """A whole number of JSON; ValueError if no float can hold it."""
    if not is_number(value := int(digits)):
        raise ValueError("a number is too large")
    return value


def read_stored_runs(paths: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """Read runs; return those that can be read, with names that differ, and why the others cannot.

    Args:
        paths: folders of runs, or folders that contain folders of runs.
    """
    runs: list[StoredRun] = []
    problems: list[str] = []
    for folder in (folder for path in paths for folder in run_folders_in(path)):
        try:
            runs.append(read_stored_run(folder))
        except UserError as error:
            problems.append(str(error))
    names = [run.name for run in runs]
    return [dataclasses.replace(r, name=str(r.path)) if names.count(r.name) > 1 else r for r in runs], problems


def list_folders(folders: Folders) -> list[Path]:
    """Return one folder or several as a list of paths."""
    return [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]


def run_folders_in(path: Path) -> Iterator[Path]:
    """Give the runs in a folder of runs, such as that of a comparison; `path` itself if it is a run or has none."""
    inside = [] if (path / "config.yaml").exists() else sorted(p.parent for p in path.glob("*/config.yaml"))
    yield from inside or [path]


def finished_result(folder: Path, experiment: Experiment) -> Result | None:
    """Return the result in a folder if it holds a complete run of this experiment, else None.

    config.yaml may have been edited since, to extend the run: the configuration in the checkpoint has to agree too.
    """
    check_run_files(folder)
    config, given = folder / "config.yaml", dump_experiment(experiment)
    if not (folder / "result.json").exists() or not config.exists():
        return None
    written = config.read_text(encoding="utf-8", errors="replace")
    trained = checkpoint_config(folder / "checkpoint" / "state.safetensors") or written
    return read_stored_run(folder).result if same_run(written, given) and same_run(trained, given) else None


class TrainedRun(NamedTuple):
    """A run with its models.

    Args:
        experiment: the experiment, with the seeds that are trained.
        built: its data, partition, model and initial parameters.
        trials: the states of all seeds that did not diverge.
        rounds: the rounds that are trained, fewer than the experiment's if the run is unfinished.
    """

    experiment: Experiment
    built: BuiltRun
    trials: list[Trial]
    rounds: int

    def personal(self, trial: Trial, client: int) -> Tensor:
        """Return the parameters [P] of the model that the method gives to a client after the last round."""
        state = tree_map(lambda t: t[0], trial.clients.gather([client]))
        return self.built.method.personal(trial.server, method_state(state))

    def personal_statistics(self, trial: Trial, client: int) -> NormStatistics | None:
        """Return the running averages of a client's model: the server's or its own; None if there are none.

        A client that keeps its own but has never taken part gets the mean of those of all clients that have.
        """
        if self.experiment.norm_stats != "local":
            return with_server_statistics(self.built.task, trial.server).statistics
        known = [client] if client in trial.clients.rows else list(trial.clients.rows) or [client]
        return tree_map(lambda t: t.mean(0), method_state(trial.clients.gather(known)).statistics)


def read_experiment(folder: Path) -> Experiment:
    """Read the experiment of a run; raise UserError if its config.yaml is missing or cannot be used."""
    check_run_files(folder)
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(None, folder, "not a run folder (config.yaml is missing)")
    try:
        return load_experiment(path)
    except UserError as error:
        raise UserError(None, path, error.problem) from None


def _what_to_name(folder: Path) -> str:
    """Return why a folder is no run that has trained: it holds the runs of a comparison or a sweep, or none."""
    if runs := sorted(str(path.parent) for path in folder.glob("*/config.yaml")):
        return f"is a folder of runs; name one of them, such as {runs[0]}"
    return f"holds no run that has trained; train one with fedflat run METHOD --out {folder}"


def read_trained_run(folder: Path, experiment: Experiment | None = None, advice: str = "") -> TrainedRun:
    """Read a run and the models of its last checkpoint; raise UserError if that is not possible.

    Prints a line if the run is unfinished.

    Args:
        folder: the run's folder.
        experiment: the run's experiment, if config.yaml cannot describe its data, model or method. It may differ from
            the run's in engine, device and precision.
        advice: what to do if the data or the model were Python objects and are not given, for the end of the message.
    """
    check_run_files(folder)
    complete = (folder / "result.json").exists()
    if not complete and not has_training(folder):
        raise _run_error(folder, _what_to_name(folder))
    experiment = read_experiment(folder) if experiment is None else experiment
    experiment.check_named(advice)
    tensors = _read_checkpoint(folder, experiment, () if complete else MAY_GROW)
    rounds, known = int(tensors["counters"][0]), trained_seeds(tensors)
    if not complete:
        print(f"run {folder}: {_describe_unfinished(experiment, rounds, known)}", file=sys.stderr)
    _tell_changed_files(folder, experiment)
    experiment = dataclasses.replace(experiment, seeds=tuple(seed for seed in experiment.seeds if seed in known))
    built = build_run(experiment)
    if data_changed(folder / "checkpoint" / "state.safetensors", built.dataset.fingerprint):
        raise _run_error(folder, f"its data, {experiment.dataset}, have changed since; restore them")
    trained, now = _read_result(folder, []).clients if complete else None, len(built.client_rows)
    if trained not in (None, now):
        raise _run_error(folder, f"was trained with {trained} clients, and its data are now of {now}")
    trials = built.trials(experiment)
    for trial in trials:
        _restore_trial(folder, trial, trial_tensors(tensors, trial.seed))
    return TrainedRun(experiment, built, _without_diverged(folder, trials), rounds)


def _describe_unfinished(planned: Experiment, rounds: int, seeds: Collection[int]) -> str:
    """One line about a run without a result: what its last checkpoint has."""
    missing = [str(seed) for seed in planned.seeds if seed not in seeds]
    without = f", without seed {', '.join(missing)}" if missing else ""
    return f"unfinished; its last checkpoint is of round {rounds} of {planned.rounds}{without}"


def _tell_changed_files(folder: Path, experiment: Experiment) -> None:
    """Print which files of the user's have changed since the run was trained."""
    stored = _read_file(folder / "config.yaml", _parse_config)
    for change in changed_files(stored.get("code"), code_checksums(experiment)):
        print(f"run {folder}: {change} since it was trained", file=sys.stderr)


def _run_error(folder: Path, problem: str) -> UserError:
    return UserError(None, f"run {folder}", problem)


def _read_checkpoint(folder: Path, experiment: Experiment, may_grow: Collection[str]) -> dict[str, Tensor]:
    """The tensors of the checkpoint, which has to be intact and of this experiment, or of fewer rounds or seeds."""
    path = folder / "checkpoint" / "state.safetensors"
    tensors = load_tensors(path)
    if tensors is None or "counters" not in tensors:
        raise _run_error(folder, f"its checkpoint is missing or damaged ({path})")
    may_differ = ("engine", "device", "precision", "threads", "code")
    if mismatch := checkpoint_mismatch(path, dump_experiment(experiment), may_differ, may_grow):
        raise _run_error(folder, mismatch)
    return tensors


def _restore_trial(folder: Path, trial: Trial, own: dict[str, Tensor]) -> None:
    """Set a trial to its state `own` in the checkpoint."""
    if "clients.table.turn" in own and trial.clients.initial:
        if is_remembered(trial.clients.initial):
            raise _run_error(folder, "was a federation; what its clients remember is on their nodes")
        server = {name: tensor for name, tensor in own.items() if name.startswith("server.")}
        own = server | {f"clients.{name}": tensor for name, tensor in trial.clients.pack().items()}
    try:
        trial.unpack(own)
    except (KeyError, TypeError):
        raise _run_error(folder, "its checkpoint does not belong to its config.yaml") from None


def _without_diverged(folder: Path, trials: list[Trial]) -> list[Trial]:
    """The trials with a finite model; prints which seeds have none."""
    kept = [trial for trial in trials if not has_diverged(trial.server.params)]
    lost = ", ".join(f"seed {trial.seed} has diverged" for trial in trials if trial not in kept)
    if not kept:
        raise _run_error(folder, f"{lost}; there is no model to start from")
    if lost:
        print(f"run {folder}: {lost} and is left out", file=sys.stderr)
    return kept


def load_model(run: str | Path, seed: int | None = None, experiment: Experiment | None = None) -> nn.Module:
    """Return the trained model of a run, on the CPU and in evaluation mode; of its last checkpoint if it is unfinished.

    The model takes normalised samples: (x / 255 − mean) / std, with mean and std of the data set.

    Args:
        run: the run's folder.
        seed: which of the run's models; that of the first seed unless given.
        experiment: the run's experiment, if its data, model or method are Python objects that config.yaml cannot name.

    Raises:
        UserError: the run has no checkpoint yet, or no model of this seed.
    """
    advice = f"in Python: fedflat.load_model('{run}', experiment=...)"
    trained = read_trained_run(Path(run), experiment, advice)
    trials = {trial.seed: trial for trial in trained.trials}
    chosen = next(iter(trials)) if seed is None else seed
    if chosen not in trials:
        raise UserError("seed", seed, f"run {run} has models of seeds {', '.join(map(str, trials))}")
    server = trials[chosen].server
    return with_server_statistics(trained.built.task, server).module(server.params)
