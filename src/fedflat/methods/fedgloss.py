"""FedGloSS (Caldarola et al., 2025, Algorithm 1): SAM of the global loss on the server, with ADMM between the clients.

down w̃, ρ_l(t) | up w_k − w̃ | client keeps σ_k | server keeps w, σ, Δ̃, t

w̃ = w + ρ Δ̃ / ‖Δ̃‖
direction = ∇f(w_k + ρ_l(t) ∇f(w_k) / ‖∇f(w_k)‖) − σ_k + (w_k − w̃) / β
σ_k ← σ_k − (w_k − w̃) / β;  σ ← σ − Σ_S (w_k − w̃) / (β N);  w ← w + Σ p_k (w_k − w̃) − β σ;  Δ̃ ← −Σ p_k (w_k − w̃)

The server perturbs w along the pseudo-gradient Δ̃ of the last round, so that one exchange per round is enough.
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
        pseudo_grad: the pseudo-gradient Δ̃ of the last round, [P].
        round: the number t of rounds played, [].
    """

    params: Tensor
    sigma: Tensor
    pseudo_grad: Tensor
    round: Tensor


class Message(NamedTuple):
    """The perturbed model w̃, [P], and the clients' radius ρ_l(t)."""

    params: Tensor
    rho: Tensor


class Client(NamedTuple):
    """The client's dual σ_k, [P]."""

    sigma: Tensor


@dataclass(frozen=True)
class FedGloSS(Method):
    """Minimise the sharpness of the global loss with one exchange per round."""

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
    dual: DualDivisor = "paper"
    """Divisor of the server's dual: N clients (the paper), or N times the cohort's size (the released code)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model, with dual and pseudo-gradient 0."""
        return Server(params, torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(()))

    def init_client(self, params: Tensor) -> Client:
        """Return a dual of zeros."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Return the model perturbed along the last pseudo-gradient (lines 4-5), and the clients' radius."""
        climb = self.rho * unit(server.pseudo_grad)
        return Message(server.params + climb, warmed_up_radius(self.rho_local, server.round, self.warmup))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """Return SAM's gradient with the dual and the penalty of ADMM (lines 12-15)."""
        g = sam_grad(task, w, batch, 0.0 if is_zero(self.rho_local) else msg.rho)
        return g - client.sigma + (w - msg.params) / self.beta, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model and the updated dual (lines 19-20)."""
        delta = w - msg.params
        return Reply(delta), Client(client.sigma - delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, update the dual and correct the average by it (lines 22-24)."""
        sigma = server.sigma - mean_change(cohort, self.dual) / self.beta
        params = server.params + cohort.mean.delta - self.beta * sigma
        return Server(params, sigma, -cohort.mean.delta, server.round + 1)
