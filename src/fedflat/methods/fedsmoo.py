"""FedSMOO (Sun et al., 2023, Algorithm 1): ADMM on the perturbations of SAM and on the models.

down w, s | up w_k − w, μ_k − ŝ_k | client keeps μ_k, ŝ_k, λ_k | server keeps w, s, λ

t = ∇f(w_k) − μ_k − s;  ŝ_k = ρ t / ‖t‖;  μ_k ← μ_k + ŝ_k − s
direction = ∇f(w_k + ŝ_k) − λ_k + (w_k − w) / β
λ_k ← λ_k − (w_k − w) / β;  λ ← λ − Σ_S (w_k − w) / (β N)
s ← ρ v / ‖v‖, v = mean_S (μ_k − ŝ_k);  w ← w + Σ p_k (w_k − w) − β λ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.options import NonNegative, Positive


class Server(NamedTuple):
    params: Tensor
    s: Tensor
    lam: Tensor


class Message(NamedTuple):
    params: Tensor
    s: Tensor


class Client(NamedTuple):
    mu: Tensor
    s_hat: Tensor  # of the last step
    lam: Tensor


class Reply(NamedTuple):
    delta: Tensor
    s: Tensor


@dataclass(frozen=True)
class FedSMOO(Method):
    """Dynamic regularisation with perturbations that clients agree on."""

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
    """Whether models are regularised too; without, only the perturbations are (FedGF compares with this)."""

    def init_server(self, params: Tensor) -> Server:
        """No perturbation, no dual."""
        return Server(params, torch.zeros_like(params), self._no_dual(params))

    def init_client(self, params: Tensor) -> Client:
        """No perturbation, no duals."""
        return Client(torch.zeros_like(params), torch.zeros_like(params), self._no_dual(params))

    def broadcast(self, server: Server) -> Message:
        """The model and the common perturbation."""
        return Message(server.params, server.s)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """The gradient at the client's perturbation, which moves towards the common one; the dual and the penalty."""
        s_hat = self.rho * unit(task.grad(w, batch) - client.mu - msg.s)
        g = task.grad(w + s_hat, batch)
        if self.regularise:
            g = g - client.lam + (w - msg.params) / self.beta
        return g, Client(client.mu + s_hat - msg.s, s_hat, client.lam)

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """The change and what the perturbations should agree on; keep the duals."""
        delta = w - msg.params
        lam = client.lam - delta / self.beta if self.regularise else client.lam
        return Reply(delta, client.mu - client.s_hat), client._replace(lam=lam)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average, correct by the dual, agree on a perturbation."""
        s, params = self.rho * unit(cohort.uniform.s), server.params + cohort.mean.delta
        if not self.regularise:
            return Server(params, s, server.lam)
        lam = server.lam - cohort.size / cohort.population * cohort.uniform.delta / self.beta
        return Server(params - self.beta * lam, s, lam)

    def _no_dual(self, params: Tensor) -> Tensor:
        """0, of a model's size only where it will be used."""
        return torch.zeros_like(params) if self.regularise else params.new_zeros(())
