"""FedACG (Kim et al., 2024): server momentum, with clients that start where the momentum leads.

down s | up w_k − s | client keeps – | server keeps w, m

s = w + λ m
direction = ∇f(w_k) + β (w_k − s)
m ← λ m + Σ p_k (w_k − s);  w ← w + m

With penalty = "whole", as in the authors' code, the penalty is β ‖w_k − s‖² instead of β/2 ‖w_k − s‖². Evaluated is w,
without the look-ahead. With λ = β = 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Message, Method
from fedflat.core.task import Batch, Task
from fedflat.options import Fraction, NonNegative


class Server(NamedTuple):
    """The global model w and its momentum m, each [P]."""

    params: Tensor
    momentum: Tensor


@dataclass(frozen=True)
class FedACG(Method):
    """A proximal term around a look-ahead of the global model."""

    citation: ClassVar[str] = """@inproceedings{kim2024fedacg,
  title = {Communication-Efficient Federated Learning with Accelerated Client Gradient},
  author = {Kim, Geeho and Kim, Jinkyu and Han, Bohyung},
  booktitle = {CVPR},
  year = {2024}
}"""

    lam: Fraction = 0.85
    """Momentum λ of the server, and how far clients start ahead."""
    beta: NonNegative = 0.002
    """Weight β of the penalty on the distance from the start."""
    penalty: Literal["half", "whole"] = "half"
    """The penalty is β/2 ‖w_k − s‖² (half), or β ‖w_k − s‖² (whole, the released code)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model and a momentum of zeros."""
        return Server(params, torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Return the look-ahead s."""
        return Message(server.params + self.lam * server.momentum)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient of f(w_k) and the penalty."""
        factor = 2 if self.penalty == "whole" else 1
        return task.grad(w, batch) + factor * self.beta * (w - msg.params), client

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Update the momentum and move the model along it."""
        momentum = self.lam * server.momentum + cohort.mean.delta
        return Server(server.params + momentum, momentum)
