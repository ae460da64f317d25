"""FedCM (Xu et al., 2021): every client's gradient, mixed with the mean direction of the last round.

down w, Δ | up w_k − w, η a_k | client keeps – | server keeps w, Δ

direction = α ∇f(w_k) + (1 − α) Δ
Δ ← mean_S (w − w_k) / mean_S (η a_k), a_k the number of steps, corrected for momentum;  w ← w + Σ p_k (w_k − w)

With direction = "each", clients also send (w − w_k) / (η a_k), and Δ is the mean of these. This is MoFedSAM with ρ = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import (
    DirectionMean,
    DirectionMessage,
    DirectionReply,
    DirectionServer,
    direction_reply,
    update_direction,
)
from fedflat.options import Fraction


@dataclass(frozen=True)
class FedCM(Method):
    """SGD on the clients with a momentum that all clients share."""

    citation: ClassVar[str] = """@article{xu2021fedcm,
  title = {{FedCM}: Federated Learning with Client-level Momentum},
  author = {Xu, Jing and Wang, Sen and Wang, Liwei and Yao, Andrew Chi-Chih},
  journal = {arXiv:2106.10874},
  year = {2021}
}"""
    bookkeeping: ClassVar[tuple[str, ...]] = ("span",)

    cm_alpha: Fraction = 0.1
    """Share α of the client's own gradient; 1 is FedAvg."""
    direction: DirectionMean = "ratio"
    """Δ for unequal K_k: a ratio of two means, or the mean of each client's ratio, which sends one model more."""

    def init_server(self, params: Tensor) -> DirectionServer:
        """Return the initial model and a direction of zeros."""
        return DirectionServer(params, torch.zeros_like(params))

    def broadcast(self, server: DirectionServer) -> DirectionMessage:
        """Return the model and the mean direction of the last round."""
        return DirectionMessage(server.params, server.delta)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: DirectionMessage, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient mixed with the mean direction."""
        return self.cm_alpha * task.grad(w, batch) + (1 - self.cm_alpha) * msg.delta, client

    def reply(self, w: Tensor, msg: DirectionMessage, client: Any, local: Local) -> tuple[DirectionReply, Any]:
        """Return the change of the model, and what the mean direction needs."""
        return direction_reply(w - msg.params, local, self.direction), client

    def update(self, server: DirectionServer, cohort: Cohort) -> DirectionServer:
        """Average the models, and compute the mean direction of the cohort's steps."""
        return update_direction(server, cohort, self.direction)
