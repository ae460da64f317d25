"""FedDyn (Acar et al., 2021, Algorithm 1): a dynamic penalty that makes local and global optima agree.

down w | up w_k − w | client keeps λ_k | server keeps w, h

direction = ∇f(w_k) − λ_k + α (w_k − w);  with ρ > 0 SAM's gradient instead of ∇f(w_k)
λ_k ← λ_k − α (w_k − w);  h ← h − (α/N) Σ_S (w_k − w);  w ← w + Σ p_k (w_k − w) − h/α
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import sam_grad
from fedflat.options import NonNegative, Positive


class Server(NamedTuple):
    params: Tensor
    h: Tensor


class Client(NamedTuple):
    lam: Tensor


@dataclass(frozen=True)
class FedDyn(Method):
    """Dynamic regularisation."""

    citation: ClassVar[str] = """@inproceedings{acar2021feddyn,
  title = {Federated Learning Based on Dynamic Regularization},
  author = {Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, Paul and
            Saligrama, Venkatesh},
  booktitle = {ICLR},
  year = {2021}
}"""

    dyn_alpha: Positive = 0.01
    """Weight α of the dynamic penalty."""
    rho: NonNegative = 0.0
    """Radius ρ of the clients' perturbation; 0 for SGD clients."""

    def init_server(self, params: Tensor) -> Server:
        """No dual."""
        return Server(params, torch.zeros_like(params))

    def init_client(self, params: Tensor) -> Client:
        """No dual."""
        return Client(torch.zeros_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """The gradient of f − ⟨λ_k, w_k⟩ + α/2 ‖w_k − w‖²."""
        g = sam_grad(task, w, batch, self.rho)
        return g - client.lam + self.dyn_alpha * (w - msg.params), client

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """Send the change, keep the dual."""
        delta = w - msg.params
        return Reply(delta), Client(client.lam - self.dyn_alpha * delta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average and correct by the dual."""
        h = server.h - self.dyn_alpha * cohort.size / cohort.population * cohort.uniform.delta
        return Server(server.params + cohort.mean.delta - h / self.dyn_alpha, h)
