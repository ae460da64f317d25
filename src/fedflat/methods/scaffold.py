"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): correct the drift of clients by control variates.

down w, c | up w_k − w, Δc_k | client keeps c_k | server keeps w, c

direction = ∇f(w_k) − c_k + c
Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k;  w ← w + Σ p_k (w_k − w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedflat.controls import Client, Message, Reply, Server, reply, start, update
from fedflat.method import Cohort, Local, Method
from fedflat.steps import Steps
from fedflat.task import Batch, Task


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging."""

    citation: ClassVar[str] = """@inproceedings{karimireddy2020scaffold,
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and Stich, Sebastian U.
            and Suresh, Ananda Theertha},
  booktitle = {ICML},
  year = {2020}
}"""

    steps: Steps = "momentum"
    """K in the control variates: the client's steps as counted (plain), or corrected for its momentum."""

    def init_server(self, params: Tensor) -> Server:
        """No drift known."""
        return start(params)[0]

    def init_client(self, params: Tensor) -> Client:
        """No drift known."""
        return start(params)[1]

    def broadcast(self, server: Server) -> Message:
        """The model and the mean control variate."""
        return Message(server.params, server.c)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """The corrected gradient."""
        return task.grad(w, batch) - client.c + msg.c, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """The changes of the model and of the control variate."""
        return reply(w, msg, client, local, self.steps)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models and the control variates."""
        return update(server, cohort)
