"""What several methods share: SAM's gradient, directions of average steps, means of duals, SCAFFOLD's control variates.

The control variates c_k and c estimate the gradient of client k and the mean gradient of all clients. Their difference
is the drift of the client, by which SCAFFOLD and FedGAMMA correct every gradient:

Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.errors import UserError

StepCount = Literal["plain", "momentum"]  # the number of local steps: as counted, or corrected for momentum
DualDivisor = Literal["paper", "released"]  # of a server's dual: N clients, or N times the cohort's size
DirectionMean = Literal["ratio", "each"]  # of unequally long training: ratio of two means, or mean of the ratios


def is_zero(value: float | Tensor) -> bool:
    """Return whether a hyper-parameter is the Python number 0, so that a step can leave out what it multiplies.

    In a sweep it may be a tensor, which has a number for each client; that is never zero as a whole.

    Args:
        value: the hyper-parameter.
    """
    return not isinstance(value, Tensor) and value == 0


def sam_grad(task: Task, w: Tensor, batch: Batch, rho: float | Tensor) -> Tensor:
    """Return SAM's gradient ∇f(w + ρ ∇f(w) / ‖∇f(w)‖), [P], with both gradients on the same batch.

    Args:
        task: the model and its loss f.
        w: the client's model, [P].
        batch: the samples.
        rho: the radius ρ. The Python number 0 costs one gradient only, a tensor always two.
    """
    g = task.grad(w, batch)
    if is_zero(rho):
        return g
    return task.grad(w + rho * unit(g), batch)


def feature_vectors(task: Task, w: Tensor, batch: Batch, method: str) -> Tensor:
    """Return the features before the last layer, [B, F].

    Args:
        task: the model.
        w: its parameters, [P].
        batch: the samples.
        method: the name of the method that compares features.

    Raises:
        UserError: the model has no parts `features` and `head`, or its features are no vectors.
    """
    subject = f"method {method}"
    if not task.has_head:
        problem = "the model has no parts `features` and `head`; give it these, with forward(x) = head(features(x))"
        raise UserError(None, subject, problem)
    features = task.features(w, batch)
    if features.dim() != 2:
        problem = f"compares one vector of features for each sample, [B, F]; the model's are {list(features.shape)}"
        raise UserError(None, subject, problem)
    return features


class PerturbedTask(Task):
    """The same task with gradients taken elsewhere: grad(w, batch) is ∇f(w + ε).

    Args:
        task: the model and its loss f.
        perturbation: ε, [P].
    """

    def __init__(self, task: Task, perturbation: Tensor) -> None:
        self._task, self._perturbation = task, perturbation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """Return ∇f(w + ε), [P]."""
        return self._task.grad(w + self._perturbation, batch)


def warmed_up_radius(rho: float, round: Tensor, rounds: int) -> Tensor:
    """Return FedGloSS's radius in round t, a scalar tensor: it rises linearly during the first T_s rounds.

    ρ(t) = 0.001 + (ρ − 0.001) t / T_s for t < T_s, and ρ from then on. If T_s or ρ is 0, it is always ρ.

    Args:
        rho: the final radius ρ.
        round: the round t, counted from 0, a scalar tensor.
        rounds: the number T_s of rounds.
    """
    if not rounds or not rho:
        return torch.full_like(round, rho)
    return 0.001 + (rho - 0.001) * (round / rounds).clamp(max=1)


def effective_steps(local: Local) -> Tensor:
    """Return the number a of steps without momentum that move as far as the client's K steps with momentum m.

    K steps along a constant g move w by a η g with a = (K − m (1 − m^K) / (1 − m)) / (1 − m); a = K if m = 0.

    Args:
        local: the client's K and m.
    """
    m, steps = local.momentum, local.steps
    return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


def mean_direction(delta: Tensor, local: Local, steps: StepCount) -> Tensor:
    """Return −(w_k − w) / (K η), the direction of the client's average step, [P].

    Args:
        delta: the change w_k − w of the model, [P].
        local: the client's learning rate η, its number of steps K and its momentum.
        steps: K as counted ("plain") or as `effective_steps` ("momentum").
    """
    return -delta / (local.lr * (effective_steps(local) if steps == "momentum" else local.steps))


def mean_change(cohort: Cohort, dual: DualDivisor = "paper", weight: float = 1.0) -> Tensor:
    """Return (α/N) Σ_S (w_k − w), [P]: what a round adds to the mean of all N clients' duals.

    Args:
        cohort: the means of the replies, which have `delta`, the change w_k − w.
        dual: divide by N ("paper"), or by N |S| as FedGloSS's released code does ("released").
        weight: the factor α.
    """
    divisor = cohort.population * (cohort.size if dual == "released" else 1)
    return weight * cohort.size / divisor * cohort.uniform.delta


class DirectionServer(NamedTuple):
    """The global model w and the mean direction Δ of the last round's steps, each [P]."""

    params: Tensor
    delta: Tensor


class DirectionMessage(NamedTuple):
    """The global model w and the mean direction Δ, each [P]."""

    params: Tensor
    delta: Tensor


class DirectionReply(NamedTuple):
    """What the server needs for its next model and for Δ.

    Args:
        delta: the change w_k − w, [P].
        span: the sum η a_k of the client's step sizes, []; () with "each".
        direction: the direction (w − w_k) / (η a_k) of the client's average step, [P]; () with "ratio".
    """

    delta: Tensor
    span: Any
    direction: Any


def direction_reply(delta: Tensor, local: Local, mean: DirectionMean) -> DirectionReply:
    """Return the change of the model, with the sum of the step sizes or the direction of the average step.

    Args:
        delta: the change w_k − w of the model, [P].
        local: the client's learning rate, number of steps and momentum.
        mean: which of the two `update_direction` needs.
    """
    if mean == "each":
        return DirectionReply(delta, (), mean_direction(delta, local, "momentum"))
    return DirectionReply(delta, local.lr * effective_steps(local), ())


def update_direction(server: DirectionServer, cohort: Cohort, mean: DirectionMean) -> DirectionServer:
    """Return the mean of the models, and the mean direction Δ of the round's steps.

    Args:
        server: the server's state.
        cohort: the means of the replies.
        mean: Δ = mean_S (w − w_k) / mean_S (η a_k) ("ratio"), or mean_S of (w − w_k) / (η a_k) ("each").
    """
    replies = cohort.uniform
    delta = replies.direction if mean == "each" else -replies.delta / replies.span
    return DirectionServer(server.params + cohort.mean.delta, delta)


class ControlServer(NamedTuple):
    """The global model w and the mean control variate c, each [P]."""

    params: Tensor
    c: Tensor


class ControlMessage(NamedTuple):
    """The global model w and the mean control variate c, each [P]."""

    params: Tensor
    c: Tensor


class ControlClient(NamedTuple):
    """The client's control variate c_k, [P]."""

    c: Tensor


class ControlReply(NamedTuple):
    """The changes w_k − w and Δc_k of the model and of the control variate, each [P]."""

    delta: Tensor
    c: Tensor


def init_controls(params: Tensor) -> tuple[ControlServer, ControlClient]:
    """Return the states of the server and of a client before the first round, with control variates of zeros.

    Args:
        params: the initial model, [P].
    """
    return ControlServer(params, torch.zeros_like(params)), ControlClient(torch.zeros_like(params))


def control_reply(
    w: Tensor, msg: ControlMessage, client: ControlClient, local: Local, steps: StepCount
) -> tuple[ControlReply, ControlClient]:
    """Return the changes of the model and of the client's control variate, and the client's new state.

    Args:
        w: the client's model at the end of local training, [P].
        msg: the received model and control variate.
        client: the client's control variate.
        local: the client's learning rate, number of steps and momentum.
        steps: how K is counted, see `mean_direction`.
    """
    change = mean_direction(w - msg.params, local, steps) - msg.c
    return ControlReply(w - msg.params, change), ControlClient(client.c + change)


def update_controls(server: ControlServer, cohort: Cohort) -> ControlServer:
    """Return the server's next state: the mean of the models, and c + (|S| / N) mean_S Δc_k.

    The factor |S| / N makes c the mean over all N clients, since only the cohort's control variates changed.

    Args:
        server: the server's state.
        cohort: the means of the replies.
    """
    c = server.c + cohort.size / cohort.population * cohort.uniform.c
    return ControlServer(server.params + cohort.mean.delta, c)
