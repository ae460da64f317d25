"""Tracing a step into plain tensor operations, and compiling them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedflat.engine.tracing import compile_operations, trace_operations


def test_tensors_that_never_change_are_not_copied() -> None:
    def step(changing: torch.Tensor, constant: torch.Tensor) -> None:
        changing.copy_(changing + constant)
        constant.copy_(constant)

    graph = trace_operations(step, torch.zeros(2), torch.ones(2))
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert [node.args[0] for node in copies] == graph.graph.find_nodes(op="placeholder")[:1]
    changing, constant = torch.zeros(2), torch.ones(2)
    graph(changing, constant)
    assert changing.tolist() == constant.tolist() == [1, 1]


class Pair(NamedTuple):
    """A state of two tensors."""

    w: torch.Tensor
    moments: tuple[torch.Tensor]


DATA = torch.arange(12.0).view(4, 3)


def step_on_data(pair: Pair, chosen: torch.Tensor) -> None:
    """Change both tensors of the pair, which depend on each other and on data that are no input."""
    pair.w.copy_(pair.w * 2 + DATA[chosen].sum(0) + pair.moments[0])
    pair.moments[0].copy_(DATA.mean(0))


def example() -> tuple[Pair, torch.Tensor]:
    return Pair(torch.ones(3), (torch.ones(3),)), torch.tensor([1, 3])


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch compiles for CPUs with g++")


@needs_compiler
def test_a_compiled_step_writes_what_the_step_writes() -> None:
    compiled = compile_operations(trace_operations(step_on_data, *example()), *example())
    ours, plain = example(), example()
    for _ in range(2):
        compiled(*ours)
        step_on_data(*plain)
    torch.testing.assert_close(ours, plain)


COMPILE = """
import torch, torch._dynamo.utils
from test_traced_step import compile_operations, example, step_on_data, trace_operations
given = example()
with torch.no_grad():
    compile_operations(trace_operations(step_on_data, *example()), *given)(*given)
counters = torch._dynamo.utils.counters
print(counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"], given[0].w.tolist())
"""


@needs_compiler
def test_another_process_finds_the_compiled_step(tmp_path: Path) -> None:
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", COMPILE]
    said = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split(maxsplit=2)
        for _ in range(2)
    ]
    assert said[0][:2] == ["0", "1"]  # compiled
    assert said[1][:2] == ["1", "0"]  # neither lowered nor compiled again
    assert said[0][2] == said[1][2] == "[15.0, 17.0, 19.0]\n"


@pytest.mark.skipif(find_spec("triton") is None, reason="without Triton torch starts no processes that compile")
def test_processes_that_compile_are_started_and_forgotten() -> None:
    script = """
from torch._inductor import async_compile
from fedflat.engine import tracing
tracing.start_compile_workers()
started = len(async_compile._pool_set)
tracing._end_compile_workers()
print(started, len(async_compile._pool_set))
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "1 0\n"
