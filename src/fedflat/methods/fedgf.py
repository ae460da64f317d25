"""FedGF (Lee & Yoon, 2024, Algorithm 1): mix local and global perturbation; the more clients diverge, the more global.

down w, w̃, c | up w_k − w, ‖w_k − w‖ | client keeps – | server keeps w, w̃ − w, c, flags, D

direction = ∇f(c w̃ + (1 − c)(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖))
w̃ = w⁺ + ρ_g (w − w⁺) / ‖w − w⁺‖;  c = share of the last W rounds whose mean ‖w_k − w‖ exceeded T_D

w̃ is the model after one ascent step of the server along its last pseudo-gradient w − w⁺ (w⁺ the new model). With c = 0
clients do plain SAM; with c = 1 they take every gradient at w̃.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import norm, unit
from fedflat.options import Count, Fraction, NonNegative, Range


class Server(NamedTuple):
    """The server's state.

    Args:
        params: the global model w, [P].
        climb: w̃ − w, [P]. Stored as a difference, so that w̃ moves with w if a wrapper changes w.
        c: the share of the global perturbation, [].
        flags: one number for each of the last W rounds, oldest first: 1 diverged, 0 did not, −1 not played yet, [W].
        distance: the mean ‖w_k − w‖ of the last round, [].
    """

    params: Tensor
    climb: Tensor
    c: Tensor
    flags: Tensor
    distance: Tensor

    @property
    def perturbed(self) -> Tensor:
        """The perturbed model w̃, [P]."""
        return self.params + self.climb


class Message(NamedTuple):
    """The models w and w̃, each [P], and the share c of w̃."""

    params: Tensor
    perturbed: Tensor
    c: Tensor


class Reply(NamedTuple):
    """The change w_k − w, [P], and its norm."""

    delta: Tensor
    distance: Tensor


@dataclass(frozen=True)
class FedGF(Method):
    """Gradients at a point between the client's and the server's perturbed model."""

    citation: ClassVar[str] = """@inproceedings{lee2024fedgf,
  title = {Rethinking the Flat Minima Searching in Federated Learning},
  author = {Lee, Taehwan and Yoon, Sung Whan},
  booktitle = {ICML},
  year = {2024}
}"""

    rho: NonNegative = 0.1
    """Radius ρ of the clients' perturbation."""
    rho_global: NonNegative | None = None
    """Radius ρ_g of the server's perturbation; ρ unless given."""
    threshold: Annotated[float, Range(0, finite=False)] = 0.2
    """T_D: mean distance of local models from the global one above which a round counts as diverged."""
    window: Count = 30
    """W: c is the share of diverged rounds among the last W."""
    static_c: Fraction | None = None
    """A constant c instead of the adaptive one."""

    def init_server(self, params: Tensor) -> Server:
        """Return the state before the first round: w̃ = w and c = 0."""
        zero = params.new_zeros(())
        return Server(params, torch.zeros_like(params), zero, params.new_full((self.window,), -1.0), zero.clone())

    def broadcast(self, server: Server) -> Message:
        """Return the model, the perturbed model and the share of the latter."""
        return Message(server.params, server.perturbed, server.c)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient at c w̃ + (1 − c)(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖) (eqs. 8-13)."""
        local = w + self.rho * unit(task.grad(w, batch))
        return task.grad(msg.c * msg.perturbed + (1 - msg.c) * local, batch), client

    def reply(self, w: Tensor, msg: Message, client: Any, local: Local) -> tuple[Reply, Any]:
        """Return the change of the model and its norm."""
        return Reply(w - msg.params, norm(w - msg.params)), client

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the models, perturb the average along the pseudo-gradient and update c."""
        distance, delta = cohort.uniform.distance, cohort.mean.delta
        flags = torch.cat([server.flags[1:], (distance > self.threshold).to(distance.dtype)[None]])
        c = flags.clamp(min=0).sum() / (flags >= 0).sum()
        c = c if self.static_c is None else torch.full_like(c, self.static_c)
        radius = self.rho if self.rho_global is None else self.rho_global
        return Server(server.params + delta, -radius * unit(delta), c, flags, distance)
