"""FedGloSS (Caldarola et al., 2025, Algorithm 1): SAM on the server, ADMM in between.

down w̃, ρ_l(t) | up w_k − w̃ | client keeps σ_k | server keeps w, σ, Δ̃, t

w̃ = w + ρ Δ̃ / ‖Δ̃‖
direction = ∇f(w_k + ρ_l(t) ∇f(w_k) / ‖∇f(w_k)‖) − σ_k + (w_k − w̃) / β
σ_k ← σ_k − (w_k − w̃) / β;  σ ← σ − Σ_S (w_k − w̃) / (β N);  w ← w + Σ p_k (w_k − w̃) − β σ;  Δ̃ ← −Σ p_k (w_k − w̃)
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
    pseudo_grad: Tensor
    round: Tensor


class Message(NamedTuple):
    params: Tensor
    rho: Tensor


class Client(NamedTuple):
    sigma: Tensor


@dataclass(frozen=True)
class FedGloSS(Method):
    """Sharpness of the global loss, at the price of one exchange."""

    citation: ClassVar[str] = """@inproceedings{caldarola2025fedgloss,
  title = {Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization for Federated Learning},
  author = {Caldarola, Debora and Cagnasso, Pietro and Caputo, Barbara and Ciccone, Marco},
  booktitle = {CVPR},
  year = {2025}
}"""

    rho: NonNegative = 0.15
    """Radius ρ of the server's perturbation."""
    rho_local: NonNegative = 0.15
    """Radius ρ_l of the clients' perturbation; 0 for SGD clients."""
    beta: Positive = 10.0
    """β: inverse weight of the ADMM penalty."""
    warmup: Index = 0
    """T_s: rounds over which the clients' radius rises linearly from 0.001; 0 keeps it constant."""
    dual: Literal["paper", "released"] = "paper"
    """Divisor of the server's dual: all clients N (the paper) or N times the cohort (the released code)."""

    def init_server(self, params: Tensor) -> Server:
        """No dual, no pseudo-gradient."""
        return Server(params, torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(()))

    def init_client(self, params: Tensor) -> Client:
        """No dual."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Climb along the last pseudo-gradient (lines 4-5)."""
        climb = self.rho * unit(server.pseudo_grad)
        return Message(server.params + climb, warmed_up_radius(self.rho_local, server.round, self.warmup))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """SAM's gradient, the dual and the penalty (lines 12-15)."""
        g = sam_grad(task, w, batch, msg.rho if self.rho_local else 0.0)
        return g - client.sigma + (w - msg.params) / self.beta, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Send the change, keep the dual (lines 19-20)."""
        delta = w - msg.params
        return Reply(delta), Client(client.sigma - delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average and correct by the dual (lines 22-24)."""
        divisor = cohort.population * (cohort.size if self.dual == "released" else 1)
        sigma = server.sigma - cohort.size / divisor * cohort.uniform.delta / self.beta
        params = server.params + cohort.mean.delta - self.beta * sigma
        return Server(params, sigma, -cohort.mean.delta, server.round + 1)
