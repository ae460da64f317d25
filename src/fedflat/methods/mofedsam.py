"""MoFedSAM (Qu et al., 2022, Algorithm 2): SAM's gradient, mixed with the mean direction of the last round.

down w, Δ | up w_k − w, η a_k | client keeps – | server keeps w, Δ

direction = β ∇f(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖) + (1 − β) Δ
Δ ← mean_S (w − w_k) / mean_S (η a_k), a_k the number of steps, corrected for momentum;  w ← w + Σ p_k (w_k − w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import effective_steps, sam_grad
from fedflat.options import Fraction, NonNegative


class Server(NamedTuple):
    """The global model w and the mean direction Δ of the last round's steps, each [P]."""

    params: Tensor
    delta: Tensor


class Message(NamedTuple):
    """The global model w and the mean direction Δ, each [P]."""

    params: Tensor
    delta: Tensor


class Reply(NamedTuple):
    """The change w_k − w, [P], and the sum η a_k of the client's step sizes."""

    delta: Tensor
    span: Tensor


@dataclass(frozen=True)
class MoFedSAM(Method):
    """SAM on the clients with a momentum that all clients share."""

    citation: ClassVar[str] = """@inproceedings{qu2022fedsam,
  title = {Generalized Federated Learning via Sharpness Aware Minimization},
  author = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  booktitle = {ICML},
  year = {2022}
}"""

    rho: NonNegative = 0.1
    """Radius ρ of the perturbation."""
    beta: Fraction = 0.1
    """Share β of the client's own gradient; 1 is FedSAM."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model and a direction of zeros."""
        return Server(params, torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Return the model and the mean direction of the last round."""
        return Message(server.params, server.delta)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Any) -> tuple[Tensor, Any]:
        """Return SAM's gradient mixed with the mean direction."""
        return self.beta * sam_grad(task, w, batch, self.rho) + (1 - self.beta) * msg.delta, client

    def reply(self, w: Tensor, msg: Message, client: Any, local: Local) -> tuple[Reply, Any]:
        """Return the change of the model and the sum of the step sizes."""
        return Reply(w - msg.params, local.lr * effective_steps(local)), client

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, and compute the direction of the cohort's average step."""
        return Server(server.params + cohort.mean.delta, -cohort.uniform.delta / cohort.uniform.span)
