"""Callbacks that write a run's metrics while it trains: as CSV, for TensorBoard, Weights & Biases and MLflow.

A run that is continued goes on in the same files, or as the same run of the tracker. The trackers' packages are
imported when a logger is made, so that a missing one is told before training.
"""

from __future__ import annotations

import csv
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.own_code import short_own_code
from fedflat.runs.callbacks import Callback, TrainingView
from fedflat.runs.config import experiment_to_dict
from fedflat.runs.folder import write_atomically

Rows = Sequence[Mapping[str, Any]]


def row_scalars(row: Mapping[str, Any], evaluated_on: str) -> Iterator[tuple[str, float]]:
    """Yield (tag, value) for metrics, loss and probes of a row of metrics.jsonl, without values that are not finite.

    Args:
        row: one line of metrics.jsonl; a probe's list gives one tag per element.
        evaluated_on: "test" or "validation", the first part of the tags of accuracy and loss.
    """
    others = ("round", "seed", "seconds", "probes")
    values = {f"{evaluated_on}/{name}": value for name, value in row.items() if name not in others}
    for key, value in row.get("probes", {}).items():
        name = key.replace(".", "/", 1)
        values |= {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
    yield from ((tag, value) for tag, value in values.items() if value is not None)


def evaluation_scalars(rows: Rows, evaluated_on: str) -> dict[str, float]:
    """Return the values of one evaluation by tag: means over seeds and, of several seeds, each under seed-N/TAG."""
    by_seed = {row["seed"]: dict(row_scalars(row, evaluated_on)) for row in rows}
    tags = dict.fromkeys(tag for values in by_seed.values() for tag in values)
    means = {tag: fmean(values[tag] for values in by_seed.values() if tag in values) for tag in tags}
    each = {f"seed-{seed}/{tag}": value for seed, values in by_seed.items() for tag, value in values.items()}
    return means | each if len(by_seed) > 1 else means


def _evaluated_on(view: TrainingView) -> str:
    return "validation" if view.experiment.validation else "test"


def _import_tracker(module: str, extra: str) -> Any:
    """Import a tracker's module; raise UserError with the extra to install if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(None, extra, f"the package is not installed; install fedflat[{extra}]") from None


def _file_in_folder(path: Path | None, view: TrainingView, name: str, logger: str) -> Path:
    """The given path, or `name` in the run's folder."""
    if path is None and view.folder is None:
        raise UserError(None, logger, f"the run has no folder; give a path, {logger}('{name}')")
    return path or view.folder / name  # type: ignore[operator]


class CSVLogger(Callback):
    """Writes every evaluation to a CSV file: round, seed, accuracy, loss, seconds, and a column for each probe.

    Args:
        path: the file; metrics.csv in the run's folder unless given. A continued run writes it anew, with all rows.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._given = Path(path) if path else None

    def on_start(self, view: TrainingView) -> None:
        """Write the heading, and the rows of the rounds before."""
        self._path = _file_in_folder(self._given, view, "metrics.csv", "CSVLogger")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns: list[str] = []
        self._append(view.history, view)

    def on_evaluation(self, view: TrainingView) -> None:
        """Append a line for each seed."""
        self._append(view.metrics, view)

    def _append(self, rows: Rows, view: TrainingView) -> None:
        """Append rows; if they have a new column, write the whole file anew."""
        flat = [{**row, **row.get("probes", {})} for row in rows]
        known = [*self._columns, *(key for row in flat for key in row)]
        columns = [column for column in dict.fromkeys(known) if column != "probes"]
        if columns != self._columns:
            self._columns, flat = columns, [{**row, **row.get("probes", {})} for row in view.history]
            self._write("w", [columns])
        self._write("a", [[row.get(column) for column in columns] for row in flat])

    def _write(self, mode: str, lines: list[list[Any]]) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)


def open_event_writer(folder: Path) -> Any:
    """Return a writer of TensorBoard's event files in `folder`, which is made; event files from before are deleted."""
    writer = _import_tracker("torch.utils.tensorboard", "tensorboard").SummaryWriter
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    return writer(str(folder))


def write_event_rows(writer: Any, rows: Rows, evaluated_on: str) -> None:
    """Write rows of one seed; the wall time is seconds of training, so that equal runs give equal curves."""
    for row in rows:
        for tag, value in row_scalars(row, evaluated_on):
            writer.add_scalar(tag, value, row["round"], walltime=row.get("seconds", 0.0))


def write_hyper_parameters(writer: Any, config: Mapping[str, Any], seed: int) -> None:
    """Write a run's options for TensorBoard's page HPARAMS, as method.rho, and its seed.

    Only the start of a session is written, without a description of the experiment: TensorBoard would take the columns
    of its page from the first description that it finds, and leave out the options of other methods.

    Args:
        writer: of the event files of one seed.
        config: the options, as config.yaml has them.
        seed: the seed.
    """
    options = {**{name: value for name, value in _flat_options(config).items() if name != "seeds"}, "seed": seed}
    shown = {name: value if isinstance(value, int | float) else str(value) for name, value in options.items()}
    _, start, _ = import_module("torch.utils.tensorboard.summary").hparams(shown, {})
    writer.file_writer.add_summary(start, walltime=0.0)


class TensorBoardLogger(Callback):
    """Writes TensorBoard's event files, one folder seed-N for each seed, after every evaluation; options as HPARAMS.

    Args:
        folder: where to; tensorboard in the run's folder unless given. A continued run writes them anew, with all rows.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        _import_tracker("torch.utils.tensorboard", "tensorboard")
        self._given = Path(folder) if folder else None

    def on_start(self, view: TrainingView) -> None:
        """Write the rows of the rounds before."""
        folder = _file_in_folder(self._given, view, "tensorboard", "TensorBoardLogger")
        self._writers = {seed: open_event_writer(folder / f"seed-{seed}") for seed in view.experiment.seeds}
        for seed, writer in self._writers.items():
            write_hyper_parameters(writer, experiment_to_dict(view.experiment), seed)
        self._write(view.history, view)

    def on_evaluation(self, view: TrainingView) -> None:
        """Write the rows of this evaluation."""
        self._write(view.metrics, view)

    def on_end(self, view: TrainingView) -> None:
        """Close the files."""
        for writer in getattr(self, "_writers", {}).values():
            writer.close()

    def _write(self, rows: Rows, view: TrainingView) -> None:
        for seed, writer in self._writers.items():
            write_event_rows(writer, [row for row in rows if row["seed"] == seed], _evaluated_on(view))
            writer.flush()


def _tracked_id(view: TrainingView, tracker: str, make: Callable[[], str]) -> str:
    """The run's name in a tracker, made once and kept in tracking.json of the run's folder."""
    path = view.folder / "tracking.json" if view.folder else None
    known = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    if tracker not in known:
        known[tracker] = make()
        if path:
            write_atomically(path, json.dumps(known) + "\n")
    return known[tracker]


def _run_name(view: TrainingView) -> str:
    return view.folder.resolve().name if view.folder else short_own_code(METHODS.name_of(type(view.experiment.method)))


def _summary(view: TrainingView) -> dict[str, float]:
    """The figures of the result that trackers show in tables of runs."""
    if view.result is None:
        return {}
    kept = (f"final_{view.result.metric}", f"last10_{view.result.metric}", "rounds", "seconds")
    return {name: value for name, value in view.result.to_json().items() if name in kept and value is not None}


class WandbLogger(Callback):
    """Writes to Weights & Biases: the options as its config, every evaluation at its round, the result as its summary.

    WANDB_MODE=offline, or mode="offline", writes to the run's folder only; `wandb sync` sends that later. Every run is
    one of wandb's, also where several train side by side in a sweep.

    Args:
        project: the project.
        settings: more arguments of wandb.init, such as mode, entity, group or tags.
    """

    def __init__(self, project: str = "fedflat", **settings: Any) -> None:
        self._wandb = _import_tracker("wandb", "wandb")
        self._settings, self._run = {"project": project, **settings}, None

    def on_start(self, view: TrainingView) -> None:
        """Begin the run of wandb, or continue it."""
        id = _tracked_id(view, "wandb", lambda: secrets.token_hex(4))
        config = experiment_to_dict(view.experiment)
        usual = {"id": id, "resume": "allow", "name": _run_name(view), "config": config, "reinit": "create_new"}
        place = {"dir": str(view.folder)} if view.folder else {}
        self._run = self._wandb.init(**{**usual, **place, **self._settings})

    def on_evaluation(self, view: TrainingView) -> None:
        """Log the values of this evaluation."""
        self._run.log(evaluation_scalars(view.metrics, _evaluated_on(view)), step=view.round)  # type: ignore[attr-defined]

    def on_end(self, view: TrainingView) -> None:
        """Write the summary and end the run of wandb."""
        if self._run:
            self._run.summary.update(_summary(view))
            self._run.finish(exit_code=0 if view.result else 1)


class MLflowLogger(Callback):
    """Writes to MLflow: the options as parameters, every evaluation at its round, the result as metrics.

    Args:
        experiment: the experiment of MLflow, which is made if there is none.
        tracking_uri: where to write, such as sqlite:///mlflow.db or a server; MLFLOW_TRACKING_URI, or what MLflow takes
            by itself, unless given.
    """

    def __init__(self, experiment: str = "fedflat", tracking_uri: str | None = None) -> None:
        self._mlflow, self._experiment = _import_tracker("mlflow", "mlflow"), experiment
        self._tracking_uri, self._run_id = tracking_uri, ""

    def on_start(self, view: TrainingView) -> None:
        """Begin the run of MLflow, or continue it."""
        self._client = self._mlflow.MlflowClient(self._tracking_uri)
        self._run_id = _tracked_id(view, "mlflow", lambda: self._create_run(view))
        self._client.update_run(self._run_id, status="RUNNING")

    def _create_run(self, view: TrainingView) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run_id = self._client.create_run(experiment_id, run_name=_run_name(view)).info.run_id
        for name, value in _flat_options(experiment_to_dict(view.experiment)).items():
            self._client.log_param(run_id, name, value)
        return run_id

    def on_evaluation(self, view: TrainingView) -> None:
        """Log the values of this evaluation."""
        self._log(evaluation_scalars(view.metrics, _evaluated_on(view)), view.round)

    def on_end(self, view: TrainingView) -> None:
        """Write the result and end the run of MLflow."""
        if self._run_id:
            self._log(_summary(view), view.round)
            self._client.set_terminated(self._run_id, "FINISHED" if view.result else "KILLED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics)


def _flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"rho": 2}} as {"method.rho": 2}."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        nested = isinstance(value, Mapping)
        flat |= _flat_options(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat
