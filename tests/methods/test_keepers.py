"""Methods whose clients keep the very tensors they were given: lanes must not share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import tiny_problem as tiny
import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.state import state_tensors
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan
from fedflat.engine.batched import Lanes, trace_operations


class Kept(NamedTuple):
    """What a client keeps."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Keeper(Method):
    """A little of what is kept acts on every step."""

    def init_client(self, params: Tensor) -> Kept:
        return Kept(torch.zeros_like(params), torch.ones_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Kept) -> tuple[Tensor, Kept]:
        gradient = task.grad(w, batch)
        return gradient + 0.1 * client.first - 0.2 * client.second, self.kept(w, gradient, msg, client)

    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        raise NotImplementedError


class TheMessage(Keeper):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(msg.params, client.second)


class TheGradientTwice(Keeper):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(gradient, gradient)


class ThePointBefore(Keeper):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(w, client.second)


class TheOtherWayRound(Keeper):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(client.second, client.first)


@pytest.fixture(params=["new tensors", "in place"])
def _step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the step of a GPU, which writes over its inputs, without its compiler."""

    def traced(self: Lanes, plan: BatchPlan) -> None:
        self._step = trace_operations(self._in_place, self.carry, self.message, self.lr, plan)
        self._reads = [True] * len(state_tensors(self.message))

    def tick(self: Lanes, time: int) -> None:
        self._step(self.carry, self.message, self.lr, BatchPlan(*(t[time] for t in self._plan)))

    if request.param == "in place":
        monkeypatch.setattr(Lanes, "_trace", traced)
        monkeypatch.setattr(Lanes, "_tick", tick)


@pytest.mark.usefixtures("_step")
@pytest.mark.parametrize("method", [TheMessage(), TheGradientTwice(), ThePointBefore(), TheOtherWayRound()], ids=repr)
def test_engines_agree(method: Method) -> None:
    plain = tiny.train(method, "sequential", range(4))
    for trial, theirs in zip(tiny.train(method, "batched", range(4)), plain, strict=True):
        for name, value in theirs.pack().items():
            torch.testing.assert_close(trial.pack()[name], value, rtol=0, atol=1e-10, msg=name)
