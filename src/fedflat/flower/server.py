"""The server of a federation: the training of a simulation, with clients on nodes."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedflat.core.metric import MainMetric, metric_name
from fedflat.core.state import ClientStore, pack_state
from fedflat.engine.rounds import Trial
from fedflat.flower.config import FederationOptions, check_reachable
from fedflat.flower.engine import FlowerEngine, LastReply
from fedflat.flower.nodes import ClientLog, Nodes
from fedflat.methods.differential_privacy import describe_privacy, privacy_spent, set_noise_key
from fedflat.runs.build import BuiltRun, build_run, load_run_dataset
from fedflat.runs.config import dump_experiment
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder, write_atomically
from fedflat.runs.result import Result
from fedflat.runs.training import Training


def serve(experiment: Experiment, federation: FederationOptions, grid: Grid) -> Result:
    """Train to the last round and return the result; continue from the checkpoint if the run's folder has one.

    A round takes seconds and a checkpoint milliseconds, so there is a checkpoint after every round.

    Args:
        experiment: what to train.
        federation: the federation's own options.
        grid: Flower's connection to the nodes.
    """
    experiment = dataclasses.replace(experiment, checkpoint_every=1)
    built, path = build_server(experiment), Path(federation.out)
    check_reachable(experiment, federation, built.participation)
    folder = RunFolder(path, dump_experiment(experiment), resume=True, data=built.dataset.fingerprint)
    try:
        log = ClientLog(path / "clients.jsonl", _run_name(path / "checkpoint" / "name"))
        nodes = Nodes(grid, built.participation.sizes, federation.round_timeout, log)
        engine = FlowerEngine(experiment, federation, built, nodes, log)
        training = Training(experiment, built, folder, engine, [FederationTrial(experiment, built)])
        return _train(training, log, path)
    finally:
        folder.close()


def _train(training: Training, log: ClientLog, path: Path) -> Result:
    """Train the remaining rounds and return the result, with the ε spent if the method is private."""
    experiment, clients = training.experiment, len(training.built.client_rows)
    log.info(f"training from round {training.round + 1} of {experiment.rounds}, in {path.resolve()}")
    for round in training.rounds():
        log.info(_describe_round(round, training.newest if training.is_evaluated else []))
    result = training.conclude(privacy_spent(experiment.method, log.asked_clients(), clients, sampled=False))
    log.info(f"finished: {result.metric} {result.main_metric.text(result.final)} after {result.rounds} rounds")
    if result.privacy:
        log.info(describe_privacy(result.privacy))
    return result


class FederationTrial(Trial):
    """The trial of a federation. It stores a `LastReply` of each client instead of the client's state.

    The key of the noise for differential privacy is random and only in memory: whoever knew it could remove the noise
    from the models. Every start of the server draws a new key. Otherwise, a round that is repeated with other clients
    and the same noise would reveal the difference between the clients' replies.
    """

    def __init__(self, experiment: Experiment, built: BuiltRun) -> None:
        super().__init__(experiment.seeds[0], built.method, built.initial_params[0])
        self.clients = ClientStore(LastReply(torch.tensor(-1)))
        self.server = set_noise_key(self.server, secrets.randbits(96))

    def pack(self) -> dict[str, Tensor]:
        """Return the trial as named tensors, with zeros in place of the key."""
        return super().pack() | {
            f"server.{name}": tensor for name, tensor in pack_state(set_noise_key(self.server, 0)).items()
        }

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Restore what `pack` returned, with a new key."""
        super().unpack(named)
        self.server = set_noise_key(self.server, secrets.randbits(96))


def build_server(experiment: Experiment) -> BuiltRun:
    """Return the model and the test data of a run, without samples of clients."""
    dataset = load_run_dataset(experiment)
    natural = dataset.owner is not None and experiment.partition in ("auto", "natural")
    population = int(dataset.owner.max()) + 1 if natural and dataset.owner is not None else experiment.clients
    return build_run(experiment, dataset, [np.empty(0, np.int64)] * population)


def _run_name(path: Path) -> str:
    """Return the run's random name. It is stored beside the checkpoint, so a run keeps it if its folder is moved."""
    if not path.exists():
        write_atomically(path, f"{secrets.randbits(64):016x}")
    return path.read_text(encoding="utf-8")


def _describe_round(round: int, rows: list[dict[str, Any]]) -> str:
    """Return a line about a round; `rows` is its evaluation, empty if it was not evaluated."""
    if not rows:
        return f"round {round}"
    row = rows[-1]
    loss = "not finite" if row["loss"] is None else f"{row['loss']:.4f}"
    name = metric_name(row)
    value = "not finite" if row[name] is None else f"{row[name]:{MainMetric(name).form}}"
    return f"round {round}: {name} {value}, loss {loss}"
