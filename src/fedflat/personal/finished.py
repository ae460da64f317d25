"""A finished run, read from its folder."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from fedflat.core.state import tree_map
from fedflat.engine.checkpoint import check_origin, load_tensors
from fedflat.engine.rounds import Trial, has_diverged
from fedflat.errors import UserError
from fedflat.experiments.assemble import Assembly, assemble
from fedflat.experiments.config import dump, load
from fedflat.experiments.experiment import Experiment


class Finished(NamedTuple):
    """A run's experiment, what it was made of, and how every seed ended that did not diverge."""

    experiment: Experiment
    assembly: Assembly
    trials: list[Trial]

    def personal(self, trial: Trial, client: int) -> Tensor:
        """The model with which the method leaves a client."""
        state = tree_map(lambda t: t[0], trial.clients.gather([client]))
        return self.experiment.method.personal(trial.server, state)


def read_run(folder: Path, experiment: Experiment | None = None) -> Finished:
    """The run in `folder`; `experiment` stands in where config.yaml cannot name its data or model."""
    if not (folder / "result.json").exists():
        raise UserError(f"run {folder}: holds no complete run; train one with fedflat run METHOD --out {folder}")
    experiment = load(folder / "config.yaml") if experiment is None else experiment
    checkpoint = folder / "checkpoint" / "state.safetensors"
    named = _tensors(checkpoint)
    check_origin(checkpoint, dump(experiment), f"run {folder}", ("engine", "device", "precision"))
    assembly = assemble(experiment)
    _check_clients(folder, len(assembly.parts))
    trials = assembly.trials(experiment)
    for trial in trials:
        start = f"trial.{trial.seed}."
        own = {name.removeprefix(start): t for name, t in named.items() if name.startswith(start)}
        if "clients.table.turn" in own and trial.clients.initial:
            raise UserError(f"run {folder}: was a federation; what its clients remember is on their nodes")
        trial.unpack(own)
    return Finished(experiment, assembly, _finite(folder, trials))


def _check_clients(folder: Path, found: int) -> None:
    """Refuse data that have been dealt otherwise since."""
    try:
        trained = json.loads((folder / "result.json").read_text(encoding="utf-8")).get("clients")
    except (ValueError, AttributeError) as error:
        raise UserError(f"run {folder}: its result.json is damaged ({error})") from None
    if trained not in (None, found):
        raise UserError(f"run {folder}: was trained with {trained} clients, and its data are now of {found}")


def read_again(function: str, run: Path, experiment: Experiment | None) -> Finished:
    """The run for fedflat.`function`, which needs data and model again where they came from Python."""
    if experiment is None and (run / "result.json").exists():
        experiment = load(run / "config.yaml")
        experiment.check_named(f"in Python: fedflat.{function}('{run}', experiment=...)")
    return read_run(run, experiment)


def load_model(run: str | Path, seed: int | None = None, experiment: Experiment | None = None) -> nn.Module:
    """The trained model of a finished run, that of its first seed unless `seed` is given.

    It takes normalised samples: (x / 255 − mean) / std with the data set's constants. `experiment` stands in where
    data, model or method were Python objects.
    """
    finished = read_again("load_model", Path(run), experiment)
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
