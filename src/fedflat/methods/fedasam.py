"""FedASAM (Caldarola et al., 2022; Kwon et al., 2021): SAM in units of the weights themselves.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇f(w_k + ρ T² ∇f(w_k) / ‖T ∇f(w_k)‖),  T = |w_k| + η
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
    """η: lets weights near zero move."""
    biases: bool = False
    """Scale biases too; otherwise T = 1 for every parameter that is not named a weight."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The gradient at the climbed point."""
        scale = self._scale(task, w)
        climb = self.rho * scale * unit(scale * task.grad(w, batch))
        return task.grad(w + climb, batch), client

    def _scale(self, task: Task, w: Tensor) -> Tensor:
        """T."""
        named = task.unflatten(w.abs() + self.eta)
        kept = named if self.biases else {n: t if "weight" in n else torch.ones_like(t) for n, t in named.items()}
        return task.flatten(kept)
