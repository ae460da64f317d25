"""FedGAMMA (Dai et al., 2023, Algorithm 1): SAM's gradient, corrected by control variates.

down w, c | up w_k − w, Δc_k | client keeps c_k | server keeps w, c

direction = ∇f(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖) − c_k + c
Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k;  w ← w + Σ p_k (w_k − w)

The control variates c_k and c are SCAFFOLD's; they estimate SAM's gradients here.
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
    sam_grad,
    update_controls,
)
from fedflat.options import NonNegative


@dataclass(frozen=True)
class FedGAMMA(Method):
    """SAM on the clients with SCAFFOLD's correction of their drift."""

    citation: ClassVar[str] = """@article{dai2023fedgamma,
  title = {{FedGAMMA}: Federated Learning With Global Sharpness-Aware Minimization},
  author = {Dai, Rong and Yang, Xun and Sun, Yan and Shen, Li and Tian, Xinmei and Wang, Meng and Zhang, Yongdong},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2023}
}"""

    rho: NonNegative = 0.15
    """Radius ρ of the perturbation."""
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
        """Return SAM's gradient, corrected by the difference of the control variates."""
        return sam_grad(task, w, batch, self.rho) - client.c + msg.c, client

    def reply(
        self, w: Tensor, msg: ControlMessage, client: ControlClient, local: Local
    ) -> tuple[ControlReply, ControlClient]:
        """Return the changes of the model and of the client's control variate, and the new control variate."""
        return control_reply(w, msg, client, local, self.steps)

    def update(self, server: ControlServer, cohort: Cohort) -> ControlServer:
        """Average the models and the control variates."""
        return update_controls(server, cohort)
