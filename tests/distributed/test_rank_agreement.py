"""One, two and three real processes train every method to the numbers of the reference engine."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.append(str(Path(__file__).parent))

import every_method as worker
import number_problem
import token_problem
from torchrun_processes import finish, launched, torchrun

from fedflat.methods import METHODS
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.scaffold import SCAFFOLD


def test_every_method_equals_one_process(tmp_path: Path) -> None:
    """One test, because all launches are compared with the same training of the sequential engine."""
    trials = {name: worker.train(method, "sequential", **kw) for name, (method, kw) in worker.CASES.items()}
    trials[worker.TOKENS] = token_problem.train(SCAFFOLD(), "sequential", cohorts=worker.COHORTS)
    trials[worker.NUMBERS] = number_problem.train(FedGloSS(), "sequential", cohorts=worker.COHORTS)
    expected = by_client({key: t for name, two in trials.items() for key, t in worker.named(name, two).items()})
    for ranks in (1, 2, 3):
        out = tmp_path / f"{ranks}.safetensors"
        with launched(torchrun(ranks, worker.__file__, str(out))) as process:
            finish(process)
        got = by_client(load_file(out))
        assert {name.partition("/")[0] for name in got} == {*METHODS, *worker.BESIDE, worker.TOKENS, worker.NUMBERS}
        assert got.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-10, msg=f"{ranks} ranks: {name}")


def by_client(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with clients in the order of their numbers; one process has them as they first took part."""
    ordered = dict(tensors)
    for name in (name for name in tensors if name.endswith(".clients.clients")):
        order = tensors[name].argsort()
        ordered[name] = tensors[name][order]
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), order + 1])
        tables = [other for other in tensors if other.startswith(name.removesuffix("clients")) and other != name]
        ordered |= {table: tensors[table][rows] for table in tables}
    return ordered
