"""FedASAM (Caldarola et al., 2022; Kwon et al., 2021): SAM whose perturbation is relative to the weights' size.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇f(w_k + ρ T² ∇f(w_k) / ‖T ∇f(w_k)‖),  T = |w_k| + η

T multiplies elementwise. With η = 0, sharpness measured so does not change if the weights of one layer are multiplied
and those of the next are divided by the same factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.options import NonNegative


@dataclass(frozen=True)
class FedASAM(Method):
    """Adaptive sharpness-aware minimisation on the clients."""

    citation: ClassVar[str] = """@inproceedings{caldarola2022fedasam,
  title = {Improving Generalization in Federated Learning by Seeking Flat Minima},
  author = {Caldarola, Debora and Caputo, Barbara and Ciccone, Marco},
  booktitle = {ECCV},
  year = {2022}
}"""

    rho: NonNegative = 0.7
    """Radius ρ of the perturbation, relative to the weights."""
    eta: NonNegative = 0.2
    """η: added to |w_k|, so that weights near zero are perturbed too."""
    biases: bool = False
    """Scale biases too; otherwise T = 1 for every parameter whose name does not contain "weight"."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient at the perturbed model."""
        scale = self._scale(task, w)
        perturbation = self.rho * scale * unit(scale * task.grad(w, batch))
        return task.grad(w + perturbation, batch), client

    def _scale(self, task: Task, w: Tensor) -> Tensor:
        """Return T, [P]."""
        named = task.unflatten(w.abs() + self.eta)
        if not self.biases:
            named = {name: t if "weight" in name else torch.ones_like(t) for name, t in named.items()}
        return task.flatten(named)
