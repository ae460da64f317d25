"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): correct the drift of clients by control variates.

down w, c | up w_k − w, Δc_k | client keeps c_k | server keeps w, c

direction = ∇f(w_k) − c_k + c
Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k;  w ← w + Σ p_k (w_k − w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import (
    ControlClient,
    ControlMessage,
    ControlReply,
    ControlServer,
    StepCount,
    control_reply,
    init_controls,
    update_controls,
)


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

    steps: StepCount = "momentum"
    """K in the control variates: the client's steps as counted (plain), or corrected for its momentum."""

    def init_server(self, params: Tensor) -> ControlServer:
        """No drift known."""
        return init_controls(params)[0]

    def init_client(self, params: Tensor) -> ControlClient:
        """No drift known."""
        return init_controls(params)[1]

    def broadcast(self, server: ControlServer) -> ControlMessage:
        """The model and the mean control variate."""
        return ControlMessage(server.params, server.c)

    def step(
        self, task: Task, w: Tensor, batch: Batch, msg: ControlMessage, client: ControlClient
    ) -> tuple[Tensor, ControlClient]:
        """The corrected gradient."""
        return task.grad(w, batch) - client.c + msg.c, client

    def reply(
        self, w: Tensor, msg: ControlMessage, client: ControlClient, local: Local
    ) -> tuple[ControlReply, ControlClient]:
        """The changes of the model and of the control variate."""
        return control_reply(w, msg, client, local, self.steps)

    def update(self, server: ControlServer, cohort: Cohort) -> ControlServer:
        """Average the models and the control variates."""
        return update_controls(server, cohort)
