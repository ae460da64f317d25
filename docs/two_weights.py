"""The small problem of the pictures of docs/methods: two clients train a model of two weights, w = (u, v).

u is the model's body, v its head. The methods themselves run, in the sequential engine. Each client has three classes
and six samples, whose class scores are, with c = (1, 0, −1),

    z = s c a·(w − o)        for two unit vectors a at right angles, s = SHARP for one and s = FLAT for the other

and of each a there is one sample of every class. Therefore the client's cross entropy is smallest at w = o, and its
valley is narrow along one vector and wide along the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch, Task
from fedflat.data.batches import BatchPlan
from fedflat.engine.rounds import Trial, play_round
from fedflat.engine.sequential import Sequential

OPTIMA = ((0.2, 2.6), (2.8, 0.4))
ANGLES = (75.0, 10.0)  # of each client's narrow direction, in degrees
SHARP, FLAT = 2.4, 1.1
START, STEPS, LR, ROUNDS = (0.6, -0.3), (4, 8), 0.45, 12


class TwoWeights(nn.Module):
    """Class scores u x₀ + v x₁ + x₂ of samples x [B, 3, classes]; u is the body, v the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(1, dtype=torch.float64))})
        self.head = Head()

    def features(self, x: Tensor) -> Tensor:
        """Return u x₀ + x₂ and x₁, [B, 2 classes]."""
        return torch.cat([self.body["weight"] * x[:, 0] + x[:, 2], x[:, 1]], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores, [B, classes]."""
        return self.head(self.features(x))


class Head(nn.Module):
    """The head of TwoWeights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        """Return class scores, [B, classes]."""
        rest, slope = features.chunk(2, -1)
        return rest + self.weight * slope


def client_samples(client: int) -> Batch:
    """Return a client's six samples, each of them twice, so that samples at even and at odd places are the same."""
    angle, optimum = math.radians(ANGLES[client]), torch.tensor(OPTIMA[client], dtype=torch.float64)
    narrow = SHARP * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    wide = FLAT * torch.tensor([-math.sin(angle), math.cos(angle)], dtype=torch.float64)
    classes = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    rows = [torch.stack([a[0] * classes, a[1] * classes, -(a @ optimum) * classes]) for a in (narrow, wide)]
    x, y = torch.stack(rows * 3), torch.tensor([0, 0, 1, 1, 2, 2])
    return Batch(x.repeat_interleave(2, 0), y.repeat_interleave(2), torch.ones(12, dtype=torch.bool), None)


class AllSamples:
    """Where batches come from: each of a client's steps has all its samples."""

    def lengths(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> list[int]:
        """Return the numbers of steps."""
        return [STEPS[client] for client in clients]

    def plan(self, seeds: Sequence[int], round: int, clients: Sequence[int], exchange: int = 0) -> BatchPlan:
        """Return client, mask and random key of each step's samples."""
        (client,) = clients
        rows = torch.full((1, STEPS[client], 12), client)
        return BatchPlan(rows, torch.ones_like(rows, dtype=torch.bool), rows + 2 * round)

    def batch(self, plan: BatchPlan) -> Batch:
        """Return the samples of one step."""
        return client_samples(int(plan.rows[0]))._replace(key=plan.key)


class LocalPath(NamedTuple):
    """What one client did in one exchange.

    Args:
        message: what it received.
        models: its models before each step and at the end, each [2].
        gradients_at: for each step, the last point at which it took a gradient, [2]; None if it took none by itself.
        replies: what it sent.
    """

    message: Any
    models: list[Tensor]
    gradients_at: list[Tensor | None]
    replies: list[Any]


class Round(NamedTuple):
    """One round: the server's state before and after, and both clients' paths in the last exchange."""

    before: Any
    clients: list[LocalPath]
    after: Any


class WatchedTask(Task):
    """A task that notes where gradients are taken."""

    def __init__(self) -> None:
        super().__init__(TwoWeights())
        self.points: list[Tensor] = []

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """Return ∇f(w) and note w."""
        self.points.append(w)
        return super().grad(w, batch)


def watched(method: Method, paths: list[LocalPath]) -> Method:
    """Return the same method, which notes the path of each client."""

    class Watched(type(method)):  # type: ignore[misc]
        def step(self, task: Any, w: Tensor, batch: Batch, msg: Any, client: Any) -> Any:
            if int(batch.step) == 0:
                paths.append(LocalPath(msg, [], [], []))
            task.points.clear()
            result = super().step(task, w, batch, msg, client)
            paths[-1].models.append(w)
            paths[-1].gradients_at.append(task.points[-1] if task.points else None)
            return result

        def reply(self, w: Tensor, msg: Any, client: Any, local: Any) -> Any:
            reply, client = super().reply(w, msg, client, local)
            paths[-1].models.append(w)
            paths[-1].replies.append(reply)
            return reply, client

    return Watched(**{field.name: getattr(method, field.name) for field in fields(method)})


def play(method: Method, rounds: int = ROUNDS, start: Sequence[float] = START) -> list[Round]:
    """Train with both clients in every round, and return the rounds.

    Args:
        method: the method.
        rounds: the number of rounds.
        start: the initial model (u, v).
    """
    task, played = WatchedTask(), []
    trial = Trial(0, method, torch.tensor(start, dtype=torch.float64))
    sgd, weights = Optimiser(torch.tensor(LR, dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    for number in range(rounds):
        paths: list[LocalPath] = []
        own, before = watched(method, paths), trial.server
        engine = Sequential(own, task, AllSamples())  # type: ignore[arg-type]
        play_round(own, engine, [trial], number, [[0, 1]], [weights], 2, sgd)
        played.append(Round(before, paths[-2:], trial.server))
    return played


@cache
def optimum_of_the_mean() -> Tensor:
    """Return the point [2] where the mean of both losses is smallest."""
    task, w = Task(TwoWeights()), torch.tensor(START, dtype=torch.float64)
    for _ in range(200):
        w = w - 0.5 * (task.grad(w, client_samples(0)) + task.grad(w, client_samples(1)))
    return w
