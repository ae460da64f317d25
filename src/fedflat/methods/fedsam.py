"""FedSAM (Qu et al., 2022; Caldarola et al., 2022): clients minimise the largest loss in a ball around their model.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇f(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖)

The point w_k + ρ ∇f / ‖∇f‖ is to first order where the loss is largest within distance ρ of w_k. A step costs two
gradients, both on the same batch. With ρ = 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import sam_grad
from fedflat.options import NonNegative


@dataclass(frozen=True)
class FedSAM(Method):
    """Sharpness-aware minimisation on the clients."""

    citation: ClassVar[str] = """@inproceedings{qu2022fedsam,
  title = {Generalized Federated Learning via Sharpness Aware Minimization},
  author = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  booktitle = {ICML},
  year = {2022}
}"""

    rho: NonNegative = 0.1
    """Radius ρ of the perturbation."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient at the perturbed model."""
        return sam_grad(task, w, batch, self.rho), client
