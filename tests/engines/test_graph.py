"""The traced step."""

from __future__ import annotations

import torch

from fedflat.engine.batched import trace_operations


def test_what_never_changes_is_not_copied() -> None:
    def step(moving: torch.Tensor, still: torch.Tensor) -> None:
        moving.copy_(moving + still)
        still.copy_(still)

    graph = trace_operations(step, torch.zeros(2), torch.ones(2))
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert [node.args[0] for node in copies] == graph.graph.find_nodes(op="placeholder")[:1]
    moving, still = torch.zeros(2), torch.ones(2)
    graph(moving, still)
    assert moving.tolist() == still.tolist() == [1, 1]
