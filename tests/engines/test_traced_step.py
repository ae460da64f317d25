"""Tracing a step into plain tensor operations."""

from __future__ import annotations

import torch

from fedflat.engine.tracing import trace_operations


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
