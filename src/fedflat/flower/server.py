"""The server of a federation: the same training as in a simulation, with clients that are nodes."""

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

from fedflat.core.state import ClientStore, pack_state
from fedflat.engine.rounds import Trial
from fedflat.flower.config import FederationOptions, check_reachable, keys_for_flags
from fedflat.flower.engine import FlowerEngine, LastReply
from fedflat.flower.nodes import ClientLog, Nodes
from fedflat.methods.differential_privacy import describe_privacy, privacy_spent, set_noise_key
from fedflat.runs.build import RunParts, build_run, load_run_dataset
from fedflat.runs.config import dump_experiment
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder, write_atomically
from fedflat.runs.result import Result
from fedflat.runs.train import Training


@keys_for_flags()
def serve(experiment: Experiment, federation: FederationOptions, grid: Grid) -> Result:
    """Train until the last round, from the checkpoint in the run's folder where there is one.

    A round takes seconds and a checkpoint milliseconds, so there is one after every round.
    """
    experiment = dataclasses.replace(experiment, checkpoint_every=1)
    assembly, path = build_server(experiment), Path(federation.out)
    check_reachable(federation, experiment.cohort, len(assembly.parts))
    folder = RunFolder(path, dump_experiment(experiment), resume=True)
    try:
        journal = ClientLog(path / "clients.jsonl", _run_name(path / "checkpoint" / "name"))
        fleet = Nodes(grid, assembly.feed.counts, federation.round_timeout, journal)
        engine = FlowerEngine(experiment, federation, assembly, fleet, journal)
        training = Training(experiment, assembly, folder, engine, [FederationTrial(experiment, assembly)])
        return _train(training, journal, path)
    finally:
        folder.close()


def _train(training: Training, journal: ClientLog, path: Path) -> Result:
    """The remaining rounds, and what they have cost."""
    experiment, clients = training.experiment, len(training.assembly.parts)
    journal.say(f"training from round {training.round + 1} of {experiment.rounds}, in {path.resolve()}")
    training.play(lambda round, rows: journal.say(_line(round, rows)))
    result = training.conclude(privacy_spent(experiment.method, journal.cohorts(), clients, sampled=False))
    journal.say(f"finished: accuracy {result.accuracy:.2%} after {result.rounds} rounds")
    if result.privacy:
        journal.say(describe_privacy(result.privacy))
    return result


class FederationTrial(Trial):
    """A federation's trial: what was seen of clients instead of their states, and noise that no one can take off.

    The key of the noise is in memory only. Every start of the server draws another: a round that is played again with
    other clients and the noise of before would tell their difference.
    """

    def __init__(self, experiment: Experiment, assembly: RunParts) -> None:
        super().__init__(experiment.seeds[0], experiment.method, assembly.starts[0])
        self.clients = ClientStore(LastReply(torch.tensor(-1)))
        self.server = set_noise_key(self.server, secrets.randbits(96))

    def pack(self) -> dict[str, Tensor]:
        """The trial as named tensors, zeros for the key."""
        return super().pack() | {
            f"server.{name}": tensor for name, tensor in pack_state(set_noise_key(self.server, 0)).items()
        }

    def unpack(self, named: Mapping[str, Tensor]) -> None:
        """Restore what `pack` gave, under another key."""
        super().unpack(named)
        self.server = set_noise_key(self.server, secrets.randbits(96))


def build_server(experiment: Experiment) -> RunParts:
    """What the server needs: the model and test data, but no client's samples."""
    dataset = load_run_dataset(experiment)
    natural = dataset.owner is not None and experiment.partition in ("auto", "natural")
    population = int(dataset.owner.max()) + 1 if natural and dataset.owner is not None else experiment.clients
    return build_run(experiment, dataset, [np.empty(0, np.int64)] * population)


def _run_name(path: Path) -> str:
    """Drawn once and kept beside the checkpoint: a run goes on under it with another engine or in another place."""
    if not path.exists():
        write_atomically(path, f"{secrets.randbits(64):016x}")
    return path.read_text(encoding="utf-8")


def _line(round: int, rows: list[dict[str, Any]]) -> str:
    row = rows[-1]
    loss = "not finite" if row["loss"] is None else f"{row['loss']:.4f}"
    return f"round {round}: accuracy {row['accuracy']:.2%}, loss {loss}"
