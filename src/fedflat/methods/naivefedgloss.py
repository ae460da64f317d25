"""NaiveFedGloSS (Caldarola et al., 2025, Section 5.1.1): SAM on the server with two exchanges per round.

down w, e | up w_k − w | client keeps σ_k | server keeps w, σ, Δ, e

exchange e = 0, from w: Δ = −Σ p_k (w_k − w), everything else is forgotten
exchange e = 1, same clients, from w̃ = w + ρ Δ / ‖Δ‖: w_k − w̃ updates w, σ_k and σ
direction = ∇f(w_k + ρ_l ∇f(w_k) / ‖∇f(w_k)‖) − σ_k + (w_k − w̃) / β
σ_k ← σ_k − (w_k − w̃) / β;  σ ← σ − Σ_S (w_k − w̃) / (β N);  w ← w + Σ p_k (w_k − w̃) − β σ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.method import Cohort, Local, Method, Reply
from fedflat.options import NonNegative, Positive
from fedflat.steps import sam_grad
from fedflat.task import Batch, Task
from fedflat.vectors import unit


class Server(NamedTuple):
    params: Tensor
    sigma: Tensor
    ascent: Tensor
    exchange: Tensor


class Message(NamedTuple):
    params: Tensor
    exchange: Tensor


class Client(NamedTuple):
    sigma: Tensor


@dataclass(frozen=True)
class NaiveFedGloSS(Method):
    """Sharpness of the global loss along this round's own pseudo-gradient, at the price of two exchanges."""

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

    def init_server(self, params: Tensor) -> Server:
        """No dual, no pseudo-gradient, first exchange."""
        return Server(params, torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(()))

    def init_client(self, params: Tensor) -> Client:
        """No dual."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """The model; in the second exchange climbed along the pseudo-gradient of the first."""
        return Message(server.params + server.exchange * self.rho * unit(server.ascent), server.exchange)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """SAM's gradient, the dual and the penalty."""
        return sam_grad(task, w, batch, self.rho_local) - client.sigma + (w - msg.params) / self.beta, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Send the change; the dual follows the second exchange only."""
        delta = w - msg.params
        return Reply(delta), Client(client.sigma - msg.exchange * delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Remember the pseudo-gradient, or average and correct by the dual."""
        sigma = server.sigma - cohort.size / cohort.population * cohort.uniform.delta / self.beta
        params, e = server.params + cohort.mean.delta - self.beta * sigma, server.exchange
        first = Server(server.params, server.sigma, -cohort.mean.delta, torch.ones_like(e))
        second = Server(params, sigma, server.ascent, torch.zeros_like(e))
        return Server(*(torch.where(e > 0, new, old) for old, new in zip(first, second, strict=True)))
