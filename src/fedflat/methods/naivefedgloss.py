"""NaiveFedGloSS (Caldarola et al., 2025, Section 5.1.1): SAM on the server with two exchanges per round.

down w, ρ_l(t), e | up w_k − w | client keeps σ_k | server keeps w, σ, Δ, e, t

exchange e = 0, from w: Δ = −Σ p_k (w_k − w), everything else is forgotten
exchange e = 1, same clients, from w̃ = w + ρ Δ / ‖Δ‖: w_k − w̃ updates w, σ_k and σ
direction = ∇f(w_k + ρ_l(t) ∇f(w_k) / ‖∇f(w_k)‖) − σ_k + (w_k − w̃) / β
σ_k ← σ_k − (w_k − w̃) / β;  σ ← σ − Σ_S (w_k − w̃) / (β N);  w ← w + Σ p_k (w_k − w̃) − β σ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.shared import sam_grad, warmed_up_radius
from fedflat.options import Index, NonNegative, Positive


class Server(NamedTuple):
    params: Tensor
    sigma: Tensor
    ascent: Tensor
    exchange: Tensor
    round: Tensor


class Message(NamedTuple):
    params: Tensor
    rho: Tensor
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
    warmup: Index = 0
    """T_s: rounds over which the clients' radius rises linearly from 0.001; 0 keeps it constant."""
    dual: Literal["paper", "released"] = "paper"
    """Divisor of the server's dual: all clients N, or N times the cohort, as in FedGloSS's released code."""

    def init_server(self, params: Tensor) -> Server:
        """No dual, no pseudo-gradient, first exchange."""
        none, zero = torch.zeros_like(params), params.new_zeros(())
        return Server(params, none, none.clone(), zero, zero.clone())

    def init_client(self, params: Tensor) -> Client:
        """No dual."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """The model; in the second exchange climbed along the pseudo-gradient of the first."""
        climb = server.exchange * self.rho * unit(server.ascent)
        return Message(
            server.params + climb, warmed_up_radius(self.rho_local, server.round, self.warmup), server.exchange
        )

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """SAM's gradient, the dual and the penalty."""
        g = sam_grad(task, w, batch, msg.rho if self.rho_local else 0.0)
        return g - client.sigma + (w - msg.params) / self.beta, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Send the change; the dual follows the second exchange only."""
        delta = w - msg.params
        return Reply(delta), Client(client.sigma - msg.exchange * delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Remember the pseudo-gradient, or average and correct by the dual."""
        e, t, divisor = (
            server.exchange,
            server.round,
            cohort.population * (cohort.size if self.dual == "released" else 1),
        )
        sigma = server.sigma - cohort.size / divisor * cohort.uniform.delta / self.beta
        params = server.params + cohort.mean.delta - self.beta * sigma
        first = Server(server.params, server.sigma, -cohort.mean.delta, torch.ones_like(e), t)
        second = Server(params, sigma, server.ascent, torch.zeros_like(e), t + 1)
        return Server(*(torch.where(e > 0, new, old) for old, new in zip(first, second, strict=True)))
