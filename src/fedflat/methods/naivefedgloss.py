"""NaiveFedGloSS (Caldarola et al., 2025, Section 5.1.1): SAM on the server with two exchanges per round.

down w, ρ_l(t), e | up w_k − w | client keeps σ_k | server keeps w, σ, Δ, e, t

exchange e = 0, from w: Δ = −Σ p_k (w_k − w); w, σ_k and σ do not change
exchange e = 1, same clients, from w̃ = w + ρ Δ / ‖Δ‖: w_k − w̃ updates w, σ_k and σ
direction = ∇f(w_k + ρ_l(t) ∇f(w_k) / ‖∇f(w_k)‖) − σ_k + (w_k − w̃) / β
σ_k ← σ_k − (w_k − w̃) / β;  σ ← σ − Σ_S (w_k − w̃) / (β N);  w ← w + Σ p_k (w_k − w̃) − β σ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.shared import DualDivisor, is_zero, mean_change, sam_grad, warmed_up_radius
from fedflat.options import Index, NonNegative, Positive


class Server(NamedTuple):
    """The server's state.

    Args:
        params: the global model w, [P].
        sigma: the dual σ, the mean of all clients' σ_k, [P].
        ascent: the pseudo-gradient Δ of the round's first exchange, [P].
        exchange: the number e of the next exchange, 0 or 1, [].
        round: the number t of rounds played, [].
    """

    params: Tensor
    sigma: Tensor
    ascent: Tensor
    exchange: Tensor
    round: Tensor


class Message(NamedTuple):
    """The model w or w̃, [P], the clients' radius ρ_l(t) and the number e of the exchange."""

    params: Tensor
    rho: Tensor
    exchange: Tensor


class Client(NamedTuple):
    """The client's dual σ_k, [P]."""

    sigma: Tensor


@dataclass(frozen=True)
class NaiveFedGloSS(Method):
    """Minimise the sharpness of the global loss along the round's own pseudo-gradient, with two exchanges per round."""

    citation: ClassVar[str] = """@inproceedings{caldarola2025fedgloss,
  title = {Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization for Federated Learning},
  author = {Caldarola, Debora and Cagnasso, Pietro and Caputo, Barbara and Ciccone, Marco},
  booktitle = {CVPR},
  year = {2025}
}"""
    exchanges: ClassVar[int] = 2

    rho: NonNegative = 0.15
    """Radius ρ of the server's perturbation."""
    rho_local: NonNegative = 0.15
    """Radius ρ_l of the clients' perturbation; 0 for SGD clients."""
    beta: Positive = 10.0
    """β: inverse weight of the ADMM penalty."""
    warmup: Index = 0
    """T_s: rounds over which the clients' radius rises linearly from 0.001; 0 keeps it constant."""
    dual: DualDivisor = "paper"
    """Divisor of the server's dual: N clients (the paper), or N times the cohort's size (FedGloSS's released code)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model, with dual and pseudo-gradient 0, before the first exchange."""
        zero = params.new_zeros(())
        return Server(params, torch.zeros_like(params), torch.zeros_like(params), zero, zero.clone())

    def init_client(self, params: Tensor) -> Client:
        """Return a dual of zeros."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Return the model, in the second exchange perturbed along the pseudo-gradient of the first."""
        climb = server.exchange * self.rho * unit(server.ascent)
        return Message(
            server.params + climb, warmed_up_radius(self.rho_local, server.round, self.warmup), server.exchange
        )

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """Return SAM's gradient with the dual and the penalty of ADMM."""
        g = sam_grad(task, w, batch, 0.0 if is_zero(self.rho_local) else msg.rho)
        return g - client.sigma + (w - msg.params) / self.beta, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model and the dual, which only the second exchange updates."""
        delta = w - msg.params
        return Reply(delta), Client(client.sigma - msg.exchange * delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Store the pseudo-gradient (first exchange), or average the models and update the dual (second)."""
        sigma = server.sigma - mean_change(cohort, self.dual) / self.beta
        params = server.params + cohort.mean.delta - self.beta * sigma
        first = server._replace(ascent=-cohort.mean.delta, exchange=torch.ones_like(server.exchange))
        second = Server(params, sigma, server.ascent, torch.zeros_like(server.exchange), server.round + 1)
        return Server(*(torch.where(server.exchange > 0, b, a) for a, b in zip(first, second, strict=True)))
