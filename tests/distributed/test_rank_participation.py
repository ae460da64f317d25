"""Two real processes train cohorts that vary, and empty ones, to the numbers of the reference engine."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parent))

import participation_ranks as worker
from every_method import named
from test_rank_agreement import by_client
from torchrun_processes import finish, launched, torchrun


def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    with launched(torchrun(2, worker.__file__, str(tmp_path / "two.safetensors"))) as process:
        finish(process)
    expected = {}
    for case, who in worker.CASES.items():
        for name, method in worker.METHODS.items():
            expected |= named(f"{case}-{name}", worker.train(method, who, "sequential", range(worker.ROUNDS)))
    expected, got = by_client(expected), by_client(load_file(tmp_path / "two.safetensors"))
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-10, msg=name)
