"""MoFedSAM (Qu et al., 2022, Algorithm 2): SAM's gradient, mixed with the mean direction of the last round.

down w, Δ | up w_k − w, η a_k | client keeps – | server keeps w, Δ

direction = β ∇f(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖) + (1 − β) Δ
Δ ← mean_S (w − w_k) / mean_S (η a_k), a_k the number of steps, corrected for momentum;  w ← w + Σ p_k (w_k − w)

With direction = "each", clients also send (w − w_k) / (η a_k), and Δ is the mean of these.
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
    sam_grad,
    update_direction,
)
from fedflat.options import Fraction, NonNegative


@dataclass(frozen=True)
class MoFedSAM(Method):
    """SAM on the clients with a momentum that all clients share."""

    citation: ClassVar[str] = """@inproceedings{qu2022fedsam,
  title = {Generalized Federated Learning via Sharpness Aware Minimization},
  author = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  booktitle = {ICML},
  year = {2022}
}"""
    bookkeeping: ClassVar[tuple[str, ...]] = ("span",)

    rho: NonNegative = 0.1
    """Radius ρ of the perturbation."""
    beta: Fraction = 0.1
    """Share β of the client's own gradient; 1 is FedSAM."""

    direction: DirectionMean = "ratio"
    """Δ for unequal K_k: a ratio of two means, or the mean of each client's ratio, which sends one model more."""

    def init_server(self, params: Tensor) -> DirectionServer:
        """Return the initial model and a direction of zeros."""
        return DirectionServer(params, torch.zeros_like(params))

    def broadcast(self, server: DirectionServer) -> DirectionMessage:
        """Return the model and the mean direction of the last round."""
        return DirectionMessage(server.params, server.delta)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: DirectionMessage, client: Any) -> tuple[Tensor, Any]:
        """Return SAM's gradient mixed with the mean direction."""
        return self.beta * sam_grad(task, w, batch, self.rho) + (1 - self.beta) * msg.delta, client

    def reply(self, w: Tensor, msg: DirectionMessage, client: Any, local: Local) -> tuple[DirectionReply, Any]:
        """Return the change of the model, and what the mean direction needs."""
        return direction_reply(w - msg.params, local, self.direction), client

    def update(self, server: DirectionServer, cohort: Cohort) -> DirectionServer:
        """Average the models, and compute the mean direction of the cohort's steps."""
        return update_direction(server, cohort, self.direction)
