"""One step as one callable: traced through vmap and grad to plain operations, on a GPU compiled and CUDA-graphed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    """The operations that `function` does on tensors like `inputs`, without the transforms that produced them."""
    graph = make_fx(lambda *tensors: function(*tensors), tracing_mode="real")(*inputs)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1]:  # a part that never changes
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def capture(function: Callable[[], None]) -> Callable[[], None]:
    """A function that works on fixed tensors on a GPU, as a CUDA graph; it runs a few times to warm up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


WARM_UP = 3
