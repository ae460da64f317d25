"""FedSOL (Lee et al., 2024, Algorithm 1): withstand a perturbation that raises the proximal loss.

down w | up w_k − w | client keeps – | server keeps w

ε = ρ Λ ⊙ ∇L_p(w_k; w) / ‖∇L_p(w_k; w)‖,  L_p = KL(softmax(f_w / T) ‖ softmax(f_{w_k} / T))
direction = ∇f(w_k + ε)

Other proximal terms (Table 4) bring the messages and the state of the methods they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.fedsol_ablation import KL, TERMS, Term, check_parts, combine_gradients, part_of
from fedflat.options import NonNegative, Positive


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
    proximal: Literal["kl", "l2", "fednova", "scaffold", "feddyn", "moon"] = "kl"
    """The proximal term: KL divergence, or another method's (Table 4, with --perturb all)."""
    temperature: Positive | None = None
    """Temperature T of the proximal losses kl (3 unless given) and moon (0.5)."""
    strategy: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6", "project"] = "A1"
    """How the term is used: A1 is FedSOL, A5 adds it to the loss, project is eq. 3; the others are Table 12's."""
    beta: NonNegative = 1.0
    """Weight β of the proximal loss in strategies A2 to A6."""

    def init_server(self, params: Tensor) -> Any:
        """As the proximal term's method."""
        return self._term().init_server(params)

    def init_client(self, params: Tensor) -> Any:
        """As the proximal term's method."""
        return self._term().init_client(params)

    def broadcast(self, server: Any) -> Any:
        """As the proximal term's method."""
        return self._term().broadcast(server)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The gradient at proximally perturbed weights."""
        check_parts(task, self.perturb, self.proximal)
        term = self._term()
        if isinstance(term, KL) and self.perturb == "head" and self.strategy == "A1":
            return term.head_step(task, w, batch, msg, self._scale), client
        strength = task.flatten(self._scale(task.unflatten(w - msg.params)))
        direction = combine_gradients(
            self.strategy,
            local=lambda v: task.grad(v, batch),
            proximal=lambda v: term.step(task, v, batch, msg, client)[0],
            climb=lambda g: strength * unit(part_of(task, self.perturb, g)),
            w=w,
            beta=self.beta,
        )
        return direction, client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """As the proximal term's method."""
        return self._term().reply(w, msg, client, local)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """As the proximal term's method."""
        return self._term().update(server, cohort)

    def _term(self) -> Term:
        added = self.beta if self.strategy in ("A2", "A3", "A4", "A5", "A6") else 0.0
        return TERMS[self.proximal](self.temperature, added)

    def _scale(self, drift: dict[str, Tensor]) -> dict[str, Tensor]:
        """ρΛ (eq. 7); 0 at w_k = w, where the proximal gradient is 0 and only its rounding noise is not."""
        if self.lam == "fixed":
            moved = torch.stack([(t != 0).any() for t in drift.values()]).any()
            return {name: self.rho * moved.to(t.dtype).expand_as(t) for name, t in drift.items()}
        if self.lam == "dim0":
            return {name: self.rho * t.abs() / t.norm(dim=0).clamp(min=1e-12) for name, t in drift.items()}
        return {name: self.rho * unit(t.abs().flatten()) for name, t in drift.items()}
