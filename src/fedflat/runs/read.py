"""Reading run folders: settings, metrics and result for tables and figures, or the trained models themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_origin, get_type_hints
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
import copy
from typing import NamedTuple
from torch import Tensor, nn
from fedflat.core.state import tree_map
from fedflat.engine.rounds import Trial, has_diverged
from fedflat.errors import UserError
from fedflat.options import check
from fedflat.runs.build import RunParts, build_run
from fedflat.runs.config import dump_experiment, load_experiment, parse_yaml
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.folder import check_checkpoint_config, load_tensors, read_metrics
from fedflat.runs.result import Result



DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading damaged files raises


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_measured(value: Any) -> bool:
    """Whether a value of JSON is a number, or null, which stands for one that is not finite."""
    return value is None or is_number(value)


def is_number_list(value: Any) -> bool:
    """Whether a value of JSON is a list of numbers and nulls."""
    return isinstance(value, list) and all(map(is_measured, value))


def check_config(config: Any) -> None:
    """Text for keys, and for what is known a value that it may have; what is unknown may be anything."""
    if not isinstance(config["method"], str | Mapping):
        raise ValueError(f"config.yaml: method {config['method']}")
    for key in config:
        if not isinstance(key, str):
            raise ValueError(f"config.yaml: the key {key} is no text")
    for key in ("dataset", "model"):
        if not isinstance(config.get(key, ""), str):
            raise ValueError(f"config.yaml: {key} {config[key]} is no text")
    given = {field.name: config[field.name] for field in fields(Setting) if field.name in config}
    setting: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    check(Setting(**setting))


def check_row(row: Mapping[str, Any]) -> None:
    """A line of metrics.jsonl: numbers, and probes that are numbers or lists of them."""
    numbers = [row["round"], row["seed"], row["accuracy"], row.get("seconds", 0.0)]
    probes = row.get("probes", {}).values()
    if not all(map(is_number, numbers)) or not is_measured(row["loss"]) or not all(is_measured(p) or is_number_list(p) for p in probes):
        raise ValueError(f"metrics.jsonl: {row}")


RESULT_KINDS = {
    int: is_number,
    float: is_number,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    list: lambda value: isinstance(value, list) and all(map(is_number, value)),
    dict: lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
}


def check_result(result: Result) -> None:
    """Numbers, lists and names as the fields of Result say, and at least one seed."""
    for name, hint in get_type_hints(Result).items():
        value, right = getattr(result, name), RESULT_KINDS.get(get_origin(hint) or hint)
        if name != "history" and right and not right(value):
            raise ValueError(f"result.json: {name} {value}")
    if not result.seeds:
        raise ValueError("result.json: no seeds")


@dataclass(frozen=True)
class StoredRun:
    """A run as its folder tells it; `result` is None while it is unfinished."""

    name: str
    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: Result | None

    @property
    def evaluated_on(self) -> str:
        """The samples that accuracy and loss are of: test, or validation where training samples are held out."""
        return "validation" if self.config.get("validation") else "test"


def evaluated_on(runs: Sequence[StoredRun]) -> str:
    """What all runs are evaluated on: test, validation, or test or validation."""
    return " or ".join(sorted({run.evaluated_on for run in runs}))


def read_stored_run(path: Path) -> StoredRun:
    """Read a run folder; raises UserError for one that is none or is damaged."""
    try:
        config = parse_yaml((path / "config.yaml").read_text(encoding="utf-8"))
        check_config(config)
        rows = read_metrics(path / "metrics.jsonl")
        for row in rows:
            check_row(row)
        result = _result(path / "result.json", rows)
    except FileNotFoundError as error:
        raise UserError(f"{path}: not a run folder ({Path(str(error.filename)).name} is missing)") from None
    except (*DAMAGE, UserError) as error:
        raise UserError(f"{path}: damaged run folder ({type(error).__name__}: {error})") from None
    if not rows:
        raise UserError(f"{path}: has no metrics yet")
    return StoredRun(Path(os.path.abspath(path)).name, path, {"cohort": 1, **config}, rows, result)


def _result(path: Path, rows: list[dict[str, Any]]) -> Result | None:
    """What a finished run has come to."""
    if not path.exists():
        return None
    result = Result(**json.loads(path.read_text(encoding="utf-8")), history=rows)
    check_result(result)
    return result


def read_stored_runs(paths: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """The runs that can be read, with names that tell them apart, and why the others cannot."""
    runs: list[StoredRun] = []
    problems: list[str] = []
    for path in (run for given in paths for run in run_folders_in(given)):
        try:
            runs.append(read_stored_run(path))
        except UserError as error:
            problems.append(str(error))
    names = [run.name for run in runs]
    return [dataclasses.replace(r, name=str(r.path)) if names.count(r.name) > 1 else r for r in runs], problems


def run_folders_in(path: Path) -> Iterator[Path]:
    """A folder of runs, such as a comparison's, stands for its runs."""
    inside = [] if (path / "config.yaml").exists() else sorted(p.parent for p in path.glob("*/config.yaml"))
    yield from inside or [path]


class TrainedRun(NamedTuple):
    """A run's experiment, what it was made of, and how every seed ended that did not diverge."""

    experiment: Experiment
    assembly: RunParts
    trials: list[Trial]

    def personal(self, trial: Trial, client: int) -> Tensor:
        """The model with which the method leaves a client."""
        state = tree_map(lambda t: t[0], trial.clients.gather([client]))
        return self.experiment.method.personal(trial.server, state)


def read_trained_run(folder: Path, experiment: Experiment | None = None) -> TrainedRun:
    """The run in `folder`; `experiment` stands in where config.yaml cannot name its data or model."""
    if not (folder / "result.json").exists():
        raise UserError(f"run {folder}: holds no complete run; train one with fedflat run METHOD --out {folder}")
    experiment = load_experiment(folder / "config.yaml") if experiment is None else experiment
    checkpoint = folder / "checkpoint" / "state.safetensors"
    named = _tensors(checkpoint)
    check_checkpoint_config(checkpoint, dump_experiment(experiment), f"run {folder}", ("engine", "device", "precision"))
    assembly = build_run(experiment)
    _check_clients(folder, len(assembly.parts))
    trials = assembly.trials(experiment)
    for trial in trials:
        start = f"trial.{trial.seed}."
        own = {name.removeprefix(start): t for name, t in named.items() if name.startswith(start)}
        if "clients.table.turn" in own and trial.clients.initial:
            raise UserError(f"run {folder}: was a federation; what its clients remember is on their nodes")
        trial.unpack(own)
    return TrainedRun(experiment, assembly, _finite(folder, trials))


def _check_clients(folder: Path, found: int) -> None:
    """Refuse data that have been dealt otherwise since."""
    try:
        trained = json.loads((folder / "result.json").read_text(encoding="utf-8")).get("clients")
    except (ValueError, AttributeError) as error:
        raise UserError(f"run {folder}: its result.json is damaged ({error})") from None
    if trained not in (None, found):
        raise UserError(f"run {folder}: was trained with {trained} clients, and its data are now of {found}")


def read_trained_run_for(function: str, run: Path, experiment: Experiment | None) -> TrainedRun:
    """The run for fedflat.`function`, which needs data and model again where they came from Python."""
    if experiment is None and (run / "result.json").exists():
        experiment = load_experiment(run / "config.yaml")
        experiment.check_named(f"in Python: fedflat.{function}('{run}', experiment=...)")
    return read_trained_run(run, experiment)


def load_model(run: str | Path, seed: int | None = None, experiment: Experiment | None = None) -> nn.Module:
    """The trained model of a finished run, that of its first seed unless `seed` is given.

    It takes normalised samples: (x / 255 − mean) / std with the data set's constants. `experiment` stands in where
    data, model or method were Python objects.
    """
    finished = read_trained_run_for("load_model", Path(run), experiment)
    known = {trial.seed: trial for trial in finished.trials}
    chosen = next(iter(known)) if seed is None else seed
    if chosen not in known:
        raise UserError(f"seed {seed}: run {run} has models of seeds {', '.join(map(str, known))}")
    task = finished.assembly.task
    model = copy.deepcopy(task.model)
    model.load_state_dict(task.unflatten(known[chosen].server.params), strict=False)
    return model.cpu().eval()


def _finite(folder: Path, trials: list[Trial]) -> list[Trial]:
    """The trials that ended with a model; says which did not."""
    kept = [trial for trial in trials if not has_diverged(trial.server.params)]
    lost = ", ".join(f"seed {trial.seed} has diverged" for trial in trials if trial not in kept)
    if not kept:
        raise UserError(f"run {folder}: {lost}; there is no model to start from")
    if lost:
        print(f"run {folder}: {lost} and is left out", file=sys.stderr)
    return kept


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of an intact checkpoint."""
    named = load_tensors(path)
    if named is None:
        raise UserError(f"run {path.parents[1]}: its checkpoint is missing or damaged ({path})")
    return named
