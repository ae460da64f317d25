"""Run under torchrun: train every method on the tiny problem and write the states of all ranks to a file."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "methods"))

import number_problem
import tiny_problem as tiny
import token_problem
from variants import AVERAGED, DEFAULTS

from fedflat.core.method import Method
from fedflat.engine import ENGINES
from fedflat.engine.aggregation import Aggregation, ClipBound
from fedflat.engine.attacks import ReplyAttack
from fedflat.engine.distributed import Distributed
from fedflat.engine.processes import ProcessGroup, join_processes
from fedflat.engine.ranks import find_rank
from fedflat.engine.rounds import Trial
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.naivefedgloss import NaiveFedGloSS
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.runs.shared_folder import SharedFolder

COHORTS = ([0, 2, 1], [1], [3], [2, 0, 3, 1])  # in the second round two clients, one for each seed
ROUNDS = 3
TOKENS = "scaffold on tokens"
NUMBERS = "fedgloss on numbers"


class MemoryFolder:
    """Stands for a run folder and keeps the checkpoint in memory."""

    saved: Mapping[str, Tensor] = {}

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        self.saved = tensors


def named(method: str, trials: list[Trial]) -> dict[str, Tensor]:
    """Return all tensors of the trials, named as in a checkpoint."""
    return {f"{method}/{t.seed}.{name}": tensor for t in trials for name, tensor in t.pack().items()}


def gathered(processes: ProcessGroup, method: str, trials: list[Trial]) -> Mapping[str, Tensor]:
    """Return, on rank 0, the tensors of the trials with the clients of all ranks."""
    folder: Any = MemoryFolder()
    SharedFolder(processes, lambda: folder).save(named(method, trials))
    return folder.saved


def train(method: Method, engine: str, **replies: Any) -> list[Trial]:
    """Train a method; clients of FedSAM and FedGloSS keep their momentum between rounds."""
    optimiser = tiny.sgd()._replace(keeps_state=isinstance(method, FedSAM | FedGloSS))
    return tiny.train(method, engine, range(ROUNDS), cohorts=COHORTS, optimiser=optimiser, **replies)


NOISE = ReplyAttack("noise", 3.0, frozenset({1, 2}), ("steps",))
ROBUST: dict[str, tuple[Method, dict[str, Any]]] = {
    "attacked": (SCAFFOLD(), {"attack": NOISE}),
    "clipped": (FedNova(), {"aggregation": Aggregation(ClipBound(0.01, False), bookkeeping=("steps",))}),
    "clipped by the median": (
        FedNova(),
        {"aggregation": Aggregation(ClipBound(1.0, True), bookkeeping=("steps",)), "attack": NOISE},
    ),
    "median": (SCAFFOLD(), {"aggregation": Aggregation(rule="median"), "attack": NOISE}),
    "trimmed": (FedNova(), {"aggregation": Aggregation(rule="trimmed", share=0.25), "attack": NOISE}),
    "krum": (NaiveFedGloSS(), {"aggregation": Aggregation(rule="krum", attackers=1), "attack": NOISE}),
}  # method, and how its replies are changed and averaged
BESIDE = ROBUST | {name: (AVERAGED[name], {}) for name in ("server+fedsam", "local+compress+scaffold")}
CASES: dict[str, tuple[Method, dict[str, Any]]] = {name: (method, {}) for name, method in DEFAULTS.items()} | BESIDE


def main(out: str) -> None:
    results: dict[str, Tensor] = {}
    with join_processes(find_rank("distributed"), "cpu") as processes:
        ENGINES["distributed"] = functools.partial(Distributed, processes=processes)
        for name, (method, replies) in CASES.items():
            results |= gathered(processes, name, train(method, "distributed", **replies))
        results |= gathered(processes, TOKENS, token_problem.train(SCAFFOLD(), "distributed", cohorts=COHORTS))
        results |= gathered(processes, NUMBERS, number_problem.train(FedGloSS(), "distributed", cohorts=COHORTS))
        if processes.leads:
            save_file({name: tensor.contiguous().clone() for name, tensor in results.items()}, out)


if __name__ == "__main__":
    main(sys.argv[1])
