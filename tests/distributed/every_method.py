"""Run under torchrun: trains every method on the tiny problem and writes what all ranks together hold to a file."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "methods"))

import tiny_problem as tiny
from variants import DEFAULTS

from fedflat.core.method import Method
from fedflat.engine import ENGINES
from fedflat.engine.distributed import Distributed
from fedflat.engine.processes import ProcessGroup, find_rank, join_processes
from fedflat.engine.rounds import Trial
from fedflat.runs.shared_folder import SharedFolder

COHORTS = ([0, 2, 1], [1], [3], [2, 0, 3, 1])  # in the second round two clients, one for each seed
ROUNDS = 3


class Caught:
    """Stands for a run folder and remembers the checkpoint."""

    saved: Mapping[str, Tensor] = {}

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        self.saved = tensors


def named(method: str, trials: list[Trial]) -> dict[str, Tensor]:
    return {f"{method}/{t.seed}.{name}": tensor for t in trials for name, tensor in t.pack().items()}


def gathered(world: ProcessGroup, method: str, trials: list[Trial]) -> Mapping[str, Tensor]:
    caught: Any = Caught()
    SharedFolder(world, lambda: caught).save(named(method, trials))
    return caught.saved


def train(method: Method, engine: str) -> list[Trial]:
    return tiny.train(method, engine, range(ROUNDS), cohorts=COHORTS)


def main(out: str) -> None:
    results: dict[str, Tensor] = {}
    with join_processes(find_rank("distributed"), "cpu") as world:
        ENGINES["distributed"] = functools.partial(Distributed, world=world)
        for name, method in DEFAULTS.items():
            results |= gathered(world, name, train(method, "distributed"))
        if world.leads:
            save_file({name: tensor.contiguous().clone() for name, tensor in results.items()}, out)


if __name__ == "__main__":
    main(sys.argv[1])
