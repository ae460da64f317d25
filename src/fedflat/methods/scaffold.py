"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): correct the drift of clients by control variates.

down w, c | up w_k − w, Δc_k | client keeps c_k | server keeps w, c

direction = ∇f(w_k) − c_k + c
Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k;  w ← w + Σ p_k (w_k − w)

c_k estimates the client's gradient and c the mean of all clients' gradients.
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
    """Gradients corrected by control variates, which estimate how far the client's differs from the mean one."""

    citation: ClassVar[str] = """@inproceedings{karimireddy2020scaffold,
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and Stich, Sebastian U.
            and Suresh, Ananda Theertha},
  booktitle = {ICML},
  year = {2020}
}"""

    steps: StepCount = "momentum"
    """Number of steps K in the control variates: as counted (plain), or corrected for the client's momentum."""

    def init_server(self, params: Tensor) -> ControlServer:
        """Return the initial model and a control variate of zeros."""
        return init_controls(params)[0]

    def init_client(self, params: Tensor) -> ControlClient:
        """Return a control variate of zeros."""
        return init_controls(params)[1]

    def broadcast(self, server: ControlServer) -> ControlMessage:
        """Return the model and the mean control variate."""
        return ControlMessage(server.params, server.c)

    def step(
        self, task: Task, w: Tensor, batch: Batch, msg: ControlMessage, client: ControlClient
    ) -> tuple[Tensor, ControlClient]:
        """Return the gradient, corrected by the difference of the control variates."""
        return task.grad(w, batch) - client.c + msg.c, client

    def reply(
        self, w: Tensor, msg: ControlMessage, client: ControlClient, local: Local
    ) -> tuple[ControlReply, ControlClient]:
        """Return the changes of the model and of the client's control variate, and the new control variate."""
        return control_reply(w, msg, client, local, self.steps)

    def update(self, server: ControlServer, cohort: Cohort) -> ControlServer:
        """Average the models and the control variates."""
        return update_controls(server, cohort)
