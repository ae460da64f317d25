"""Methods whose client states are tensors of the message, the gradient or the model: clients must not share memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import tiny_problem as tiny
import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.state import state_tensors, tree_map
from fedflat.core.task import Batch, Task
from fedflat.engine.lane_training import Lanes, StepPlan
from fedflat.engine.tracing import trace_operations


class Kept(NamedTuple):
    """A client's state."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class KeepingMethod(Method):
    """A small multiple of the client's state is added to every step's gradient."""

    def init_client(self, params: Tensor) -> Kept:
        return Kept(torch.zeros_like(params), torch.ones_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Kept) -> tuple[Tensor, Kept]:
        gradient = task.grad(w, batch)
        return gradient + 0.1 * client.first - 0.2 * client.second, self.kept(w, gradient, msg, client)

    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        raise NotImplementedError


class KeepsTheMessage(KeepingMethod):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(msg.params, client.second)


class KeepsTheGradientTwice(KeepingMethod):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(gradient, gradient)


class KeepsTheLastModel(KeepingMethod):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(w, client.second)


class SwapsItsTensors(KeepingMethod):
    def kept(self, w: Tensor, gradient: Tensor, msg: Any, client: Kept) -> Kept:
        return Kept(client.second, client.first)


@pytest.fixture(params=["new tensors", "in place"])
def _step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the ordinary step, and the step used on GPUs, which overwrites its inputs, without its compiler.

    It reads the batches of two steps from a buffer, which is filled again for the next two.
    """

    def traced(self: Lanes, plan: StepPlan) -> None:
        self._plans = tree_map(lambda t: t.new_zeros(2, *t.shape), plan)
        self._time = torch.zeros(1, dtype=torch.int64)
        self._inputs = (self.carry, self.message, self.numbers, self._plans, self._time)
        self._traced_step = trace_operations(self._step_in_place, *self._inputs)
        self._message_reads = [True] * len(state_tensors(self.message))

    def run_step(self: Lanes, time: int, plans: StepPlan) -> None:
        if time % 2 == 0:
            self._load_plans(tree_map(lambda t: t[time : time + 2], plans))
        self._traced_step(*self._inputs)

    if request.param == "in place":
        monkeypatch.setattr(Lanes, "_trace_step", traced)
        monkeypatch.setattr(Lanes, "_run_step", run_step)


@pytest.mark.usefixtures("_step")
@pytest.mark.parametrize(
    "method", [KeepsTheMessage(), KeepsTheGradientTwice(), KeepsTheLastModel(), SwapsItsTensors()], ids=repr
)
def test_engines_agree(method: Method) -> None:
    plain = tiny.train(method, "sequential", range(4))
    for trial, theirs in zip(tiny.train(method, "batched", range(4)), plain, strict=True):
        for name, value in theirs.pack().items():
            torch.testing.assert_close(trial.pack()[name], value, rtol=0, atol=1e-10, msg=name)
