"""FedNTD (Lee et al., 2022, Algorithm 1): distil the global model's predictions for all classes but the true one.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇[f(w_k) + β τ² KL(q_w ‖ q_{w_k})],  q = softmax(logits / τ) over the wrong classes of each sample
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.options import NonNegative, Positive


@dataclass(frozen=True)
class FedNTD(Method):
    """Cross entropy and distillation from the received model over the wrong classes."""

    citation: ClassVar[str] = """@inproceedings{lee2022fedntd,
  title = {Preservation of the Global Knowledge by Not-True Distillation in Federated Learning},
  author = {Lee, Gihun and Jeong, Minchan and Shin, Yongjin and Bae, Sangmin and Yun, Se-Young},
  booktitle = {NeurIPS},
  year = {2022}
}"""

    beta: NonNegative = 1.0
    """Weight β of the distillation."""
    tau: Positive = 1.0
    """Temperature τ of the two distributions that the distillation compares."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient of cross entropy and distillation; w is the received model."""
        teacher = self._log_wrong(task.logits(msg.params, batch), batch)

        def loss(v: Tensor) -> Tensor:
            logits = task.logits(v, batch)
            kl = (teacher.exp() * (teacher - self._log_wrong(logits, batch))).sum(-1)
            return task.output_loss(logits, batch) + self.beta * self.tau**2 * task.mean(kl, batch)

        return grad(loss)(w), client

    def _log_wrong(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return log softmax(logits / τ) over the wrong classes, [B, classes].

        The entry of the true class is a large negative number instead of −∞: its probability is 0, and 0 times it is no
        NaN.
        """
        true = batch.y[:, None] == torch.arange(logits.shape[-1], device=logits.device)
        return torch.log_softmax(torch.where(true, -1e30, logits / self.tau), -1)
