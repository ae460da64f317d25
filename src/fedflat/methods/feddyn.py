"""FedDyn (Acar et al., 2021, Algorithm 1): a dynamic penalty that makes local and global optima agree.

down w | up w_k − w | client keeps λ_k | server keeps w, h

direction = ∇f(w_k) − λ_k + α (w_k − w);  with ρ > 0 SAM's gradient instead of ∇f(w_k)
λ_k ← λ_k − α (w_k − w);  h ← h − (α/N) Σ_S (w_k − w);  w ← w + Σ p_k (w_k − w) − h/α

h is the mean of all clients' duals λ_k. A client that stops at its own stationary point has λ_k = ∇f_k there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import DualDivisor, mean_change, sam_grad
from fedflat.options import NonNegative, Positive


class Server(NamedTuple):
    """The global model w and the dual h, each [P]."""

    params: Tensor
    h: Tensor


class Client(NamedTuple):
    """The client's dual λ_k, [P]."""

    lam: Tensor


@dataclass(frozen=True)
class FedDyn(Method):
    """Local losses with a linear and a quadratic term that change from round to round."""

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
    dual: DualDivisor = "paper"
    """Divisor of the server's dual: N clients (the paper), or N times the cohort's size (as FedGloSS's code has it)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model and a dual of zeros."""
        return Server(params, torch.zeros_like(params))

    def init_client(self, params: Tensor) -> Client:
        """Return a dual of zeros."""
        return Client(torch.zeros_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """Return the gradient of f(w_k) − ⟨λ_k, w_k⟩ + α/2 ‖w_k − w‖²."""
        g = sam_grad(task, w, batch, self.rho)
        return g - client.lam + self.dyn_alpha * (w - msg.params), client

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model and the updated dual."""
        delta = w - msg.params
        return Reply(delta), Client(client.lam - self.dyn_alpha * delta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, update h and correct the average by it."""
        h = server.h - mean_change(cohort, self.dual, self.dyn_alpha)
        return Server(server.params + cohort.mean.delta - h / self.dyn_alpha, h)
