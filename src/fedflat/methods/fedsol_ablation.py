"""The strategies and proximal terms that FedSOL is compared with (Lee et al., 2024, Tables 1, 4 and 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.errors import UserError
from fedflat.methods import shared
from fedflat.methods.shared import effective_steps, mean_direction

Gradient = Callable[[Tensor], Tensor]


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
    """Take from g what opposes p: g − min(⟨g, p⟩, 0) p / ‖p‖²."""
    p = unit(p)
    return g - (g * p).sum().clamp(max=0) * p


def part_of(task: Task, name: str, g: Tensor) -> Tensor:
    """g on the parameters of the "head", the "body" or "all", and 0 elsewhere."""
    if name == "all":
        return g
    head = task.mask("head.", g.device)
    return torch.where(head if name == "head" else ~head, g, 0)


def check_parts(task: Task, perturb: str, proximal: str) -> None:
    """Refuse a perturbation of parts that the model does not have or the proximal loss does not see."""
    if perturb != "all" and not task.has_head:
        raise UserError(f"--perturb {perturb}: the model has no parts `features` and `head`; use --perturb all")
    if proximal == "moon" and not task.has_head:
        raise UserError("--proximal moon: the model has no parts `features` and `head`; use another term")
    if proximal == "moon" and perturb == "head":
        raise UserError("--perturb head: MOON's proximal loss does not depend on the head; use body or all")


Scale = Callable[[dict[str, Tensor]], dict[str, Tensor]]  # from w_k − w to ρΛ, tensor by tensor


class Normalised(NamedTuple):
    delta: Tensor
    c: Tensor
    steps: Tensor


class DualServer(NamedTuple):
    params: Tensor
    h: Tensor


class DualClient(NamedTuple):
    lam: Tensor


class Previous(NamedTuple):
    params: Tensor


@dataclass(frozen=True)
class Term(Method):
    """A proximal term; `weight` is how much of it the local steps follow, 0 where it only perturbs."""

    temperature: float | None = None
    weight: float = 0.0


class KL(Term):
    """L_p = KL(softmax(f_w / T) ‖ softmax(f_{w_k} / T)), T = 3 unless given."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """∇L_p at w."""
        teacher = task.logits(msg.params, batch)
        return grad(lambda v: self.loss(task, task.logits(v, batch), teacher, batch))(w), client

    def loss(self, task: Task, logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
        """KL(teacher ‖ student), without the factor T² of distillation."""
        log_q, log_p = (torch.log_softmax(z / (self.temperature or 3.0), -1) for z in (logits, teacher))
        return task.mean((log_p.exp() * (log_p - log_q)).sum(-1), batch)

    def head_step(self, task: Task, w: Tensor, batch: Batch, msg: Any, scale: Scale) -> Tensor:
        """∇f(w + ρΛ ⊙ unit(∇L_p)), only the head perturbed: one pass through the body serves both losses."""
        teacher = task.logits(msg.params, batch)
        head, start = (_head(task.unflatten(v)) for v in (w, msg.params))
        strength = task.flatten(scale({name: head[name] - start[name] for name in head}))

        def loss(v: Tensor) -> Tensor:
            named = task.unflatten(v)
            features = task.features(named, batch)
            fixed = features.detach()
            pull = grad(lambda u: self.loss(task, task.head(u, fixed), teacher, batch))(head)
            climb = task.unflatten(strength * unit(task.flatten(pull)), "head.")
            return task.cross_entropy(task.head({name: named[name] + climb[name] for name in climb}, features), batch)

        return grad(loss)(w)


def _head(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith("head.")}


class L2(Term):
    """FedProx's term: L_p = ½ ‖w_k − w‖²."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """w_k − w."""
        return w - msg.params, client


class Control(Term):
    """g_p = c − c_k, with c_k the client's mean local gradient when it last took part and c the mean of all c_k."""

    def init_server(self, params: Tensor) -> shared.ControlServer:
        """c = 0."""
        return shared.init_controls(params)[0]

    def init_client(self, params: Tensor) -> shared.ControlClient:
        """c_k = 0."""
        return shared.init_controls(params)[1]

    def broadcast(self, server: shared.ControlServer) -> shared.ControlMessage:
        """w and c."""
        return shared.ControlMessage(server.params, server.c)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """c − c_k."""
        return msg.c - client.c, client

    def control(self, w: Tensor, msg: shared.ControlMessage, client: shared.ControlClient, local: Local) -> Tensor:
        """c_k ← (w − w_k) / (K η) − weight (c − c_k): the mean direction less what the term added to it."""
        return mean_direction(w - msg.params, local, "momentum") - self.weight * (msg.c - client.c)


class Scaffold(Control):
    """SCAFFOLD's term (option II, K corrected for momentum)."""

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[shared.ControlReply, shared.ControlClient]:
        """w_k − w and the change of c_k."""
        c = self.control(w, msg, client, local)
        return shared.ControlReply(w - msg.params, c - client.c), shared.ControlClient(c)

    def update(self, server: shared.ControlServer, cohort: Cohort) -> shared.ControlServer:
        """w ← Σ p_k w_k;  c ← c + (1/N) Σ_S Δc_k."""
        return shared.update_controls(server, cohort)


class NovaTerm(Control):
    """FedNova's cross-client term on normalised updates, and its normalised averaging."""

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Normalised, shared.ControlClient]:
        """(w_k − w) / a_k, the change of c_k, and a_k, the steps corrected for momentum."""
        c, steps = self.control(w, msg, client, local), effective_steps(local)
        return Normalised((w - msg.params) / steps, c - client.c, steps), shared.ControlClient(c)

    def update(self, server: shared.ControlServer, cohort: Cohort) -> shared.ControlServer:
        """w ← w + (Σ p_k a_k) Σ p_k (w_k − w) / a_k;  c as SCAFFOLD."""
        params = server.params + cohort.mean.steps * cohort.mean.delta
        return shared.update_controls(server, cohort)._replace(params=params)


class DualTerm(Term):
    """g_p = w_k − w − λ_k, with FedDyn's duals λ_k and their correction on the server, in units of α."""

    def init_server(self, params: Tensor) -> DualServer:
        """h = 0."""
        return DualServer(params, torch.zeros_like(params))

    def init_client(self, params: Tensor) -> DualClient:
        """λ_k = 0."""
        return DualClient(torch.zeros_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """w_k − w − λ_k."""
        return w - msg.params - client.lam, client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, DualClient]:
        """λ_k ← λ_k − (w_k − w)."""
        return Reply(w - msg.params), DualClient(client.lam - (w - msg.params))

    def update(self, server: DualServer, cohort: Cohort) -> DualServer:
        """h ← h − (1/N) Σ_S (w_k − w);  w ← Σ p_k w_k − h."""
        h = server.h - cohort.size / cohort.population * cohort.uniform.delta
        return DualServer(server.params + cohort.mean.delta - h, h)


class Moon(Term):
    """L_p = −log softmax([cos(z, z_w), cos(z, z_prev)] / T)[0], T = 0.5 unless given, z the penultimate features."""

    def init_client(self, params: Tensor) -> Previous:
        """The previous local model: w⁰."""
        return Previous(params.clone())

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """∇L_p at w."""
        near, far = (task.features(v, batch) for v in (msg.params, client.params))

        def loss(v: Tensor) -> Tensor:
            z = task.features(v, batch)
            gap = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
            return task.mean(F.softplus(gap / (self.temperature or 0.5)), batch)

        return grad(loss)(w), client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, Previous]:
        """Keep the local model."""
        return Reply(w - msg.params), Previous(w)


TERMS: dict[str, type[Term]] = {
    "kl": KL,
    "l2": L2,
    "fednova": NovaTerm,
    "scaffold": Scaffold,
    "feddyn": DualTerm,
    "moon": Moon,
}
