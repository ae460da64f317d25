"""FedSOL (Lee et al., 2024, Algorithm 1): withstand a perturbation that raises the proximal loss.

down w | up w_k − w | client keeps – | server keeps w

ε = ρ Λ ⊙ ∇L_p(w_k; w) / ‖∇L_p(w_k; w)‖,  L_p = KL(softmax(f_w / T) ‖ softmax(f_{w_k} / T))
direction = ∇f(w_k + ε)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from fedflat.method import Method
from fedflat.options import NonNegative, Positive
from fedflat.task import Batch, Task
from fedflat.vectors import unit


@dataclass(frozen=True)
class FedSOL(Method):
    """Stabilised orthogonal learning: the local gradient at proximally perturbed weights."""

    citation: ClassVar[str] = """@inproceedings{lee2024fedsol,
  title = {{FedSOL}: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning},
  author = {Lee, Gihun and Jeong, Minchan and Kim, Sangmook and Oh, Jaehoon and Yun, Se-Young},
  booktitle = {CVPR},
  year = {2024}
}"""

    rho: NonNegative = 2.0
    """Strength ρ of the perturbation."""
    lam: Literal["tensor", "dim0", "fixed"] = "tensor"
    """Λ: |w_k − w| normalised per tensor (the paper), along axis 0 (the released code), or 1."""
    perturb: Literal["head", "body", "all"] = "head"
    """Which parameters are perturbed."""
    temperature: Positive = 3.0
    """Temperature T of the distributions that the proximal loss compares."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The gradient at proximally perturbed weights."""
        teacher = task.logits(msg.params, batch)
        strength = self.rho * self._scale(task, w - msg.params)
        if self.perturb == "head":
            return self._head_step(task, w, batch, teacher, strength), client
        kept = task.mask("head.", w.device) if self.perturb == "body" else torch.zeros_like(w, dtype=torch.bool)
        climb = grad(lambda v: self._proximal(task, task.logits(v, batch), teacher, batch))(w)
        return task.grad(w + strength * unit(torch.where(kept, 0, climb)), batch), client

    def _head_step(self, task: Task, w: Tensor, batch: Batch, teacher: Tensor, strength: Tensor) -> Tensor:
        """One pass through the body serves both losses: only the head is perturbed."""

        def loss(v: Tensor) -> Tensor:
            features = task.features(v, batch)
            fixed = features.detach()
            climb = grad(lambda u: self._proximal(task, task.head(u, fixed), teacher, batch))(w)
            return task.cross_entropy(task.head(v + strength * unit(climb), features), batch)

        return grad(loss)(w)

    def _proximal(self, task: Task, logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
        """KL(teacher ‖ student) at temperature T; a factor T² would cancel in the unit vector."""
        log_q, log_p = (torch.log_softmax(z / self.temperature, -1) for z in (logits, teacher))
        return task.mean((log_p.exp() * (log_p - log_q)).sum(-1), batch)

    def _scale(self, task: Task, drift: Tensor) -> Tensor:
        """Λ (eq. 7); 0 at w_k = w, where the proximal gradient is 0 and only its rounding noise is not."""
        if self.lam == "fixed":
            return (drift != 0).any().to(drift.dtype)
        if self.lam == "dim0":
            named = task.unflatten(drift.abs())
            return task.flatten({name: t / t.norm(dim=0).clamp(min=1e-12) for name, t in named.items()})
        return task.flatten({name: unit(t.flatten()) for name, t in task.unflatten(drift.abs()).items()})
