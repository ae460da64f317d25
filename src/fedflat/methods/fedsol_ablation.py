"""FedSOL's ablations (Lee et al., 2024, Tables 1, 4 and 12): other proximal terms, and other ways to use them.

down w | up w_k − w | client keeps – | server keeps w

g_p is the proximal gradient, ε(g) = ρ Λ ⊙ g / ‖g‖ on the perturbed part. The direction is a row of `combine_gradients`.

Another term brings the messages, the client's state and the server's step of the method it comes from; its scale (μ, α)
is left out: it is the weight β where the term is added to the local loss, and cancels in ε.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.errors import UserError, mention
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fedsol import FedSOL, Part, Strength, check_part, kl_loss, part_of, perturbation_strength
from fedflat.methods.moon import MOON
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.methods.shared import ControlClient, ControlReply, effective_steps, mean_direction, update_controls
from fedflat.options import NonNegative, Positive

Gradient = Callable[[Tensor], Tensor]


class PreviousModel(NamedTuple):
    """MOON's client state under the name that checkpoints of these ablations have always had."""

    params: Tensor


class NormalisedReply(NamedTuple):
    delta: Tensor
    c: Tensor
    steps: Tensor


@dataclass(frozen=True)
class FedSOLAblation(Method):
    """FedSOL with another proximal term or another use of it; with the defaults it is FedSOL."""

    citation: ClassVar[str] = FedSOL.citation
    bookkeeping: ClassVar[tuple[str, ...]] = ("steps",)

    rho: NonNegative = 2.0
    """Strength ρ of the perturbation."""
    lam: Strength = "tensor"
    """Λ: |w_k − w| normalised per tensor (the paper), along axis 0 (the released code), or 1."""
    perturb: Part = "head"
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
        """As the term's method."""
        return self._base().init_server(params)

    def init_client(self, params: Tensor) -> Any:
        """As the term's method."""
        return self._kept(self._base().init_client(params))

    def broadcast(self, server: Any) -> Any:
        """As the term's method."""
        return self._base().broadcast(server)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """The direction of the strategy."""
        self._check(task)
        if self.proximal == "kl" and self.strategy == "A1":
            return FedSOL(self.rho, self.lam, self.perturb, self.temperature or 3.0).step(task, w, batch, msg, client)
        strength = task.flatten(perturbation_strength(self.lam, self.rho, task.unflatten(w - msg.params)))
        direction = combine_gradients(
            self.strategy,
            local=lambda v: task.grad(v, batch),
            proximal=lambda v: self.proximal_gradient(task, v, batch, msg, client),
            climb=lambda g: strength * unit(part_of(task, self.perturb, g)),
            w=w,
            beta=self.beta,
        )
        return direction, client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """As the term's method; a control variate is the client's mean local gradient, whatever the steps followed."""
        if self.proximal not in ("scaffold", "fednova"):
            reply, kept = self._base().reply(w, msg, client, local)
            return reply, self._kept(kept)
        added = self.beta if self.strategy in ("A2", "A3", "A4", "A5", "A6") else 0.0
        c = mean_direction(w - msg.params, local, "momentum") - added * (msg.c - client.c)
        if self.proximal == "scaffold":
            return ControlReply(w - msg.params, c - client.c), ControlClient(c)
        steps = effective_steps(local)
        return NormalisedReply((w - msg.params) / steps, c - client.c, steps), ControlClient(c)

    def update(self, server: Any, cohort: Cohort) -> Any:
        """As the term's method; FedNova's averaging beside the control variates."""
        if self.proximal != "fednova":
            return self._base().update(server, cohort)
        params = server.params + cohort.mean.steps * cohort.mean.delta
        return update_controls(server, cohort)._replace(params=params)

    def proximal_gradient(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> Tensor:
        """g_p at w: ∇KL; w − w_t; c − c_k; w − w_t − λ_k; or the gradient of MOON's contrast."""
        if self.proximal == "kl":
            teacher = task.logits(msg.params, batch)
            return grad(lambda v: kl_loss(task, task.logits(v, batch), teacher, batch, self.temperature or 3.0))(w)
        if self.proximal == "moon":
            towards, away = task.features(msg.params, batch), task.features(client.params, batch)
            return grad(lambda v: self._moon().contrast(task, task.features(v, batch), towards, away, batch))(w)
        if self.proximal in ("scaffold", "fednova"):
            return msg.c - client.c
        return w - msg.params - (client.lam if self.proximal == "feddyn" else 0)

    def _base(self) -> Method:
        """The method whose messages, state and server step the term needs."""
        controlled, plain = SCAFFOLD(), Method()
        bases = {"scaffold": controlled, "fednova": controlled, "feddyn": FedDyn(dyn_alpha=1.0), "moon": self._moon()}
        return bases.get(self.proximal, plain)

    def _kept(self, client: Any) -> Any:
        """The term's client state, as it is stored."""
        return PreviousModel(*client) if self.proximal == "moon" else client

    def _moon(self) -> MOON:
        return MOON(tau=self.temperature or 0.5)

    def _check(self, task: Task) -> None:
        """Raise UserError where the part is missing in the model or the term does not depend on it."""
        check_part(task, self.perturb)
        if self.proximal == "moon" and not task.has_head:
            raise UserError("proximal", "moon", "the model has no parts `features` and `head`; use another term")
        if self.proximal == "moon" and self.perturb == "head":
            other = f"use {mention('perturb', 'body')} or {mention('perturb', 'all')}"
            raise UserError("perturb", "head", f"MOON's proximal loss does not depend on the head; {other}")


def combine_gradients(
    strategy: str, local: Gradient, proximal: Gradient, climb: Gradient, w: Tensor, beta: float
) -> Tensor:
    """The direction at w from ∇f = local, g_p = ∇L_p = proximal and ε(g) = climb.

    | strategy | direction | |
    |---|---|---|
    | A0 | ∇f(w) | FedAvg |
    | A1 | ∇f(w + ε(g_p)) | FedSOL |
    | A2 | ∇f(w) + β ∇L_p(w + ε(g_p)) | |
    | A3 | ∇f(w + ε(g_p)) + β ∇L_p(w + ε(g_p)) | |
    | A4 | ∇f(w + ε_c) + β ∇L_p(w + ε_c), ε_c = ε(∇f + β g_p) | SAM of the sum |
    | A5 | ∇f(w) + β ∇L_p(w) | the term as a part of the loss (eq. 2) |
    | A6 | ∇f(w + ε(g_p)) + β ∇L_p(w) | |
    | project | ∇f − min(⟨∇f, g_p⟩, 0) g_p / ‖g_p‖² | eq. 3 |
    """
    if strategy == "A0":
        return local(w)
    g = proximal(w)
    if strategy == "A5":
        return local(w) + beta * g
    if strategy == "project":
        return project_gradient(local(w), g)
    up = w + climb(local(w) + beta * g if strategy == "A4" else g)
    if strategy == "A2":
        return local(w) + beta * proximal(up)
    added = {"A3": proximal, "A4": proximal, "A6": lambda v: g}
    return local(up) + beta * added[strategy](up) if strategy in added else local(up)


def project_gradient(g: Tensor, p: Tensor) -> Tensor:
    """Remove from g its component against p: g − min(⟨g, p⟩, 0) p / ‖p‖²."""
    p = unit(p)
    return g - (g * p).sum().clamp(max=0) * p
