"""One step as one callable: traced through vmap and grad to plain operations, on a GPU compiled and CUDA-graphed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedflat.engine.state import pack


def trace(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """The operations that `function` does on tensors like `inputs`, without the transforms that produced them."""
    graph = make_fx(lambda *tensors: function(*tensors), tracing_mode="real")(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    if next(iter(pack(inputs).values())).is_cuda:
        return torch.compile(graph, fullgraph=True, dynamic=False)
    return graph


class Replay:
    """A function without inputs or outputs that works on fixed tensors, captured once and replayed (on a GPU)."""

    def __init__(self, function: Callable[[], None], cuda: bool) -> None:
        self._function = function
        self._graph = self._capture() if cuda else None

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._function()
        return graph

    def __call__(self) -> None:
        """Do it once."""
        self._graph.replay() if self._graph else self._function()
