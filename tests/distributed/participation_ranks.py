"""Run under torchrun: train with cohorts that vary and write the states of all ranks to a file."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "methods"))

from every_method import gathered
from tiny_participation import METHODS, ROUNDS, everything, participation, train

from fedflat.engine import ENGINES
from fedflat.engine.distributed import Distributed
from fedflat.engine.processes import join_processes
from fedflat.engine.ranks import find_rank

CASES = {"everything": everything(), "weighted": participation("weighted")}


def main(out: str) -> None:
    results: dict[str, Tensor] = {}
    with join_processes(find_rank("distributed"), "cpu") as processes:
        ENGINES["distributed"] = functools.partial(Distributed, processes=processes)
        for case, who in CASES.items():
            for name, method in METHODS.items():
                trained = train(method, who, "distributed", range(ROUNDS))
                results |= gathered(processes, f"{case}-{name}", trained)
        if processes.leads:
            save_file({name: tensor.contiguous().clone() for name, tensor in results.items()}, out)


if __name__ == "__main__":
    main(sys.argv[1])
