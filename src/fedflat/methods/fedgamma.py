"""FedGAMMA (Dai et al., 2023, Algorithm 1): SAM's gradient, corrected by control variates.

down w, c | up w_k − w, Δc_k | client keeps c_k | server keeps w, c

direction = ∇f(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖) − c_k + c
Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k;  w ← w + Σ p_k (w_k − w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedflat.controls import Client, Message, Reply, Server, reply, start, update
from fedflat.method import Cohort, Local, Method
from fedflat.options import NonNegative
from fedflat.steps import Steps, sam_grad
from fedflat.task import Batch, Task


@dataclass(frozen=True)
class FedGAMMA(Method):
    """Sharpness-aware clients whose drift is controlled."""

    citation: ClassVar[str] = """@article{dai2023fedgamma,
  title = {{FedGAMMA}: Federated Learning With Global Sharpness-Aware Minimization},
  author = {Dai, Rong and Yang, Xun and Sun, Yan and Shen, Li and Tian, Xinmei and Wang, Meng and Zhang, Yongdong},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2023}
}"""

    rho: NonNegative = 0.15
    """Radius ρ of the perturbation."""
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
        """SAM's gradient, corrected."""
        return sam_grad(task, w, batch, self.rho) - client.c + msg.c, client

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Reply, Client]:
        """The changes of the model and of the control variate."""
        return reply(w, msg, client, local, self.steps)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models and the control variates."""
        return update(server, cohort)
