"""Proximal terms: what pulls a local model back to the global one.

A term is a method whose `step` gives the proximal gradient g_p alone, without the local loss; its messages, state and
server step are those of the method it comes from. Scales such as μ and α are left out: they are the weight β of the
term where it is added to the local loss, and cancel where only its direction matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

import fedflat.controls as controls
from fedflat.method import Cohort, Local, Method, Reply
from fedflat.steps import effective_steps, mean_direction
from fedflat.task import Batch, Task
from fedflat.vectors import unit

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

    def init_server(self, params: Tensor) -> controls.Server:
        """c = 0."""
        return controls.start(params)[0]

    def init_client(self, params: Tensor) -> controls.Client:
        """c_k = 0."""
        return controls.start(params)[1]

    def broadcast(self, server: controls.Server) -> controls.Message:
        """w and c."""
        return controls.Message(server.params, server.c)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """c − c_k."""
        return msg.c - client.c, client

    def control(self, w: Tensor, msg: controls.Message, client: controls.Client, local: Local) -> Tensor:
        """c_k ← (w − w_k) / (K η) − weight (c − c_k): the mean direction less what the term added to it."""
        return mean_direction(w - msg.params, local, "momentum") - self.weight * (msg.c - client.c)


class Scaffold(Control):
    """SCAFFOLD's term (option II, K corrected for momentum)."""

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[controls.Reply, controls.Client]:
        """w_k − w and the change of c_k."""
        c = self.control(w, msg, client, local)
        return controls.Reply(w - msg.params, c - client.c), controls.Client(c)

    def update(self, server: controls.Server, cohort: Cohort) -> controls.Server:
        """w ← Σ p_k w_k;  c ← c + (1/N) Σ_S Δc_k."""
        return controls.update(server, cohort)


class FedNova(Control):
    """FedNova's cross-client term on normalised updates, and its normalised averaging."""

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Normalised, controls.Client]:
        """(w_k − w) / a_k, the change of c_k, and a_k, the steps corrected for momentum."""
        c, steps = self.control(w, msg, client, local), effective_steps(local)
        return Normalised((w - msg.params) / steps, c - client.c, steps), controls.Client(c)

    def update(self, server: controls.Server, cohort: Cohort) -> controls.Server:
        """w ← w + (Σ p_k a_k) Σ p_k (w_k − w) / a_k;  c as SCAFFOLD."""
        params = server.params + cohort.mean.steps * cohort.mean.delta
        return controls.update(server, cohort)._replace(params=params)


class FedDyn(Term):
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
    "fednova": FedNova,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "moon": Moon,
}
