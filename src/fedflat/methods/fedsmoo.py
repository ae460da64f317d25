"""FedSMOO (Sun et al., 2023, Algorithm 1): ADMM on the perturbations of SAM and on the models.

down w, s | up w_k − w, μ_k − ŝ_k | client keeps μ_k, ŝ_k, λ_k | server keeps w, s, λ

t = ∇f(w_k) − μ_k − s;  ŝ_k = ρ t / ‖t‖;  μ_k ← μ_k + ŝ_k − s
direction = ∇f(w_k + ŝ_k) − λ_k + (w_k − w) / β
λ_k ← λ_k − (w_k − w) / β;  λ ← λ − Σ_S (w_k − w) / (β N)
s ← ρ v / ‖v‖, v = mean_S (μ_k − ŝ_k);  w ← w + Σ p_k (w_k − w) − β λ

One ADMM, with duals μ_k, makes the clients' perturbations ŝ_k agree on a common s; another, with duals λ_k, makes their
models agree on w. With `warmup`, ρ is FedGloSS's ρ(t) in round t, which is sent too and for which the server keeps t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.shared import DualDivisor, mean_change, warmed_up_radius
from fedflat.options import Index, NonNegative, Positive


class Server(NamedTuple):
    """The server's state.

    Args:
        params: the global model w, [P].
        s: the common perturbation s, [P].
        lam: the dual λ of the models, [P]; without `regularise` a scalar that is not used.
        round: the number t of rounds played, []; empty without `warmup`.
    """

    params: Tensor
    s: Tensor
    lam: Tensor
    round: Any = ()


class Message(NamedTuple):
    """The global model w and the common perturbation s, each [P], and with `warmup` the radius ρ(t)."""

    params: Tensor
    s: Tensor
    rho: Any = ()


class Client(NamedTuple):
    """The client's state; each [P], λ_k a scalar without `regularise`.

    Args:
        mu: the dual μ_k of the perturbation.
        s_hat: the perturbation ŝ_k of the last step, which the reply needs.
        lam: the dual λ_k of the model.
    """

    mu: Tensor
    s_hat: Tensor
    lam: Tensor


class Reply(NamedTuple):
    """The change w_k − w and μ_k − ŝ_k, each [P]."""

    delta: Tensor
    s: Tensor


@dataclass(frozen=True)
class FedSMOO(Method):
    """SAM with one perturbation for all clients, and dynamic regularisation of the models."""

    citation: ClassVar[str] = """@inproceedings{sun2023fedsmoo,
  title = {Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global Consistency and
           Smooth Landscape},
  author = {Sun, Yan and Shen, Li and Chen, Shixiang and Ding, Liang and Tao, Dacheng},
  booktitle = {ICML},
  year = {2023}
}"""

    rho: NonNegative = 0.15
    """Radius ρ of the perturbation."""
    beta: Positive = 10.0
    """β: inverse weight of the dynamic penalty."""
    regularise: bool = True
    """Regularise the models too; without it only the perturbations are regularised (FedGF compares with this)."""
    dual: DualDivisor = "paper"
    """Divisor of the server's dual: N clients (the paper), or N times the cohort's size (as FedGloSS's code has it)."""
    warmup: Index = 0
    """T_s: rounds over which the radius rises linearly from 0.001, as FedGloSS's does; 0 keeps it constant."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model, with perturbation and dual 0."""
        round = params.new_zeros(()) if self.warmup else ()
        return Server(params, torch.zeros_like(params), self._zero_dual(params), round)

    def init_client(self, params: Tensor) -> Client:
        """Return a perturbation and duals of zeros."""
        return Client(torch.zeros_like(params), torch.zeros_like(params), self._zero_dual(params))

    def broadcast(self, server: Server) -> Message:
        """Return the model and the common perturbation, and with warm-up the round's radius."""
        return Message(server.params, server.s, self._radius(server) if self.warmup else ())

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """Return the gradient at the client's perturbed model with dual and penalty, and the new state."""
        s_hat = (msg.rho if self.warmup else self.rho) * unit(task.grad(w, batch) - client.mu - msg.s)
        g = task.grad(w + s_hat, batch)
        g = g - client.lam + (w - msg.params) / self.beta if self.regularise else g
        return g, Client(client.mu + s_hat - msg.s, s_hat, client.lam)

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model and μ_k − ŝ_k, and the updated dual of the model."""
        delta = w - msg.params
        client = client._replace(lam=client.lam - delta / self.beta) if self.regularise else client
        return Reply(delta, client.mu - client.s_hat), client

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, correct the average by the dual and update the common perturbation."""
        s, params = self._radius(server) * unit(cohort.uniform.s), server.params + cohort.mean.delta
        round = server.round + 1 if self.warmup else ()
        if not self.regularise:
            return Server(params, s, server.lam, round)
        lam = server.lam - mean_change(cohort, self.dual) / self.beta
        return Server(params - self.beta * lam, s, lam, round)

    def _radius(self, server: Server) -> float | Tensor:
        """Return the radius of the round: ρ, or ρ(t) with warm-up."""
        return warmed_up_radius(self.rho, server.round, self.warmup) if self.warmup else self.rho

    def _zero_dual(self, params: Tensor) -> Tensor:
        """Return a dual of zeros, [P], or a scalar 0 if models are not regularised."""
        return torch.zeros_like(params) if self.regularise else params.new_zeros(())
