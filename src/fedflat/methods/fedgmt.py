"""FedGMT (Li et al., 2025): clients stay close to the predictions of a moving average of the global models.

down w, e | up w_k − w | client keeps u_k | server keeps w, e, u

direction = ∇[f(w_k) + γ τ² KL(q_e ‖ q_{w_k})] − u_k,  q = softmax(logits / τ)
u_k ← u_k − (w_k − w) / β;  u ← u − Σ_S (w_k − w) / (β N);  w ← Σ p_k w_k − β u;  e ← α e + (1 − α) w

u is the mean of all clients' duals u_k. With dual = "cohort", as printed, only the cohort's duals correct the average:
clients send w_k − β u_k − w, and w ← Σ p_k (w_k − β u_k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import mean_change
from fedflat.options import Fraction, NonNegative, Positive


class Server(NamedTuple):
    """The server's state.

    Args:
        params: the global model w, [P].
        e: the moving average e of the global models, [P].
        u: the mean u of all clients' duals, [P]; a scalar 0 with dual = "cohort".
    """

    params: Tensor
    e: Tensor
    u: Tensor


class Message(NamedTuple):
    """The global model w and the moving average e, each [P]."""

    params: Tensor
    e: Tensor


class Client(NamedTuple):
    """The client's dual u_k, [P]."""

    u: Tensor


@dataclass(frozen=True)
class FedGMT(Method):
    """Distillation from the averaged global models, which guide to a flat minimum, with ADMM between the clients."""

    citation: ClassVar[str] = """@inproceedings{li2025fedgmt,
  title = {One Arrow, Two Hawks: Sharpness-aware Minimization for Federated Learning via Global Model Trajectory},
  author = {Li, Yuhang and Liu, Tong and Cui, Yangguang and Hu, Ming and Li, Xiaoqiang},
  booktitle = {ICML},
  year = {2025}
}"""

    gamma: NonNegative = 1.0
    """Weight γ of the distillation."""
    tau: Positive = 3.0
    """Temperature τ of the two distributions that the distillation compares."""
    ema_alpha: Fraction = 0.95
    """Decay α of the moving average of the global models."""
    beta: Positive = 10.0
    """β: inverse weight of the duals."""
    dual: Literal["all", "cohort"] = "all"
    """Duals u_k that correct the average: all clients' (the released code) or the cohort's (as printed)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model, also as the moving average, and a dual of zeros."""
        return Server(params, params.clone(), torch.zeros_like(params) if self.dual == "all" else params.new_zeros(()))

    def init_client(self, params: Tensor) -> Client:
        """Return a dual of zeros."""
        return Client(torch.zeros_like(params))

    def broadcast(self, server: Server) -> Message:
        """Return the model and the moving average."""
        return Message(server.params, server.e)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """Return the gradient of cross entropy and distillation from e, less the dual."""
        teacher = torch.log_softmax(task.logits(msg.e, batch) / self.tau, -1)

        def loss(v: Tensor) -> Tensor:
            logits = task.logits(v, batch)
            kl = (teacher.exp() * (teacher - torch.log_softmax(logits / self.tau, -1))).sum(-1)
            return task.output_loss(logits, batch) + self.gamma * self.tau**2 * task.mean(kl, batch)

        return grad(loss)(w) - client.u, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model (as printed, corrected by β u_k) and the updated dual."""
        delta = w - msg.params
        u = client.u - delta / self.beta
        return Reply(delta if self.dual == "all" else delta - self.beta * u), Client(u)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, correct the average by the dual, and update the moving average."""
        params, u = server.params + cohort.mean.delta, server.u
        if self.dual == "all":
            u = server.u - mean_change(cohort) / self.beta
            params = params - self.beta * u
        return Server(params, self.ema_alpha * server.e + (1 - self.ema_alpha) * params, u)
