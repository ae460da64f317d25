"""FedSOL (Lee et al., 2024, Algorithm 1): take the local gradient at weights whose proximal loss is raised.

down w | up w_k − w | client keeps – | server keeps w

L_p = KL(softmax(f_w / T) ‖ softmax(f_{w_k} / T));  Λ = |w_k − w| / ‖w_k − w‖ in each tensor (eq. 7)
ε = ρ Λ ⊙ ∇L_p(w_k) / ‖∇L_p(w_k)‖ on the perturbed part;  direction = ∇f(w_k + ε)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.errors import UserError, mention
from fedflat.options import NonNegative, Positive

Part = Literal["head", "body", "all"]
Strength = Literal["tensor", "dim0", "fixed"]


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
    lam: Strength = "tensor"
    """Λ: |w_k − w| normalised per tensor (the paper), along axis 0 (the released code), or 1."""
    perturb: Part = "head"
    """Which parameters are perturbed."""
    temperature: Positive = 3.0
    """Temperature T of the proximal loss."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """∇f(w_k + ε)."""
        teacher = task.logits(msg.params, batch)
        check_part(task, self.perturb)
        if self.perturb == "head":
            return self._head_step(task, w, batch, msg.params, teacher), client
        g = grad(lambda v: kl_loss(task, task.logits(v, batch), teacher, batch, self.temperature))(w)
        climb = perturbation_strength(self.lam, self.rho, task.unflatten(w - msg.params))
        return task.grad(w + task.flatten(climb) * unit(part_of(task, self.perturb, g)), batch), client

    def _head_step(self, task: Task, w: Tensor, batch: Batch, start: Tensor, teacher: Tensor) -> Tensor:
        """The same where only the head is perturbed: one pass through the body serves both losses."""
        head = {name: t for name, t in task.unflatten(w).items() if name.startswith("head.")}
        before = task.unflatten(start)
        drift = {name: head[name] - before[name] for name in head}
        strength = task.flatten(perturbation_strength(self.lam, self.rho, drift))

        def loss(v: Tensor) -> Tensor:
            named = task.unflatten(v)
            features = task.features(named, batch)
            fixed = features.detach()
            g = grad(lambda u: kl_loss(task, task.head(u, fixed), teacher, batch, self.temperature))(head)
            climb = task.unflatten(strength * unit(task.flatten(g)), "head.")
            return task.output_loss(task.head({name: named[name] + climb[name] for name in climb}, features), batch)

        return grad(loss)(w)


def kl_loss(task: Task, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
    """L_p = KL(softmax(teacher / T) ‖ softmax(logits / T)), mean over the batch, without distillation's factor T²."""
    log_q, log_p = (torch.log_softmax(z / temperature, -1) for z in (logits, teacher))
    return task.mean((log_p.exp() * (log_p - log_q)).sum(-1), batch)


def perturbation_strength(lam: Strength, rho: float, drift: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ρΛ from w_k − w, tensor by tensor; 0 at w_k = w, where the proximal gradient is only rounding noise."""
    if lam == "fixed":
        moved = torch.stack([(t != 0).any() for t in drift.values()]).any()
        return {name: rho * moved.to(t.dtype).expand_as(t) for name, t in drift.items()}
    if lam == "dim0":
        return {name: rho * t.abs() / t.norm(dim=0).clamp(min=1e-12) for name, t in drift.items()}
    return {name: rho * unit(t.abs().flatten()) for name, t in drift.items()}


def part_of(task: Task, part: Part, g: Tensor) -> Tensor:
    """g on the parameters of the head, the body or all, 0 elsewhere."""
    if part == "all":
        return g
    head = task.mask("head.", g.device)
    return torch.where(head if part == "head" else ~head, g, 0)


def check_part(task: Task, part: Part) -> None:
    """Raise UserError if the model is to be perturbed in a part that it does not have."""
    if part != "all" and not task.has_head:
        problem = "the model has no parts `features` and `head`; use " + mention("perturb", "all")
        raise UserError("perturb", part, problem)
