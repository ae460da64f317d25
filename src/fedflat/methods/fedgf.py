"""FedGF (Lee & Yoon, 2024, Algorithm 1): perturb towards the global ascent as far as clients diverge.

down w, w̃, c | up w_k − w, ‖w_k − w‖ | client keeps – | server keeps w, w̃ − w, c, flags, D

direction = ∇f(c w̃ + (1 − c)(w_k + ρ ∇f(w_k) / ‖∇f(w_k)‖))
w̃ = w⁺ + ρ_g (w − w⁺) / ‖w − w⁺‖;  c = share of the last W rounds whose mean ‖w_k − w‖ exceeded T_D
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
    params: Tensor
    climb: Tensor  # w̃ − w, so that it stays with w where a wrapper moves that
    c: Tensor
    flags: Tensor  # of the last W rounds, oldest first: 1 diverged, 0 did not, −1 not yet played
    distance: Tensor

    @property
    def perturbed(self) -> Tensor:
        """w̃."""
        return self.params + self.climb


class Message(NamedTuple):
    params: Tensor
    perturbed: Tensor
    c: Tensor


class Reply(NamedTuple):
    delta: Tensor
    distance: Tensor


@dataclass(frozen=True)
class FedGF(Method):
    """Interpolate between the local and the global perturbation."""

    citation: ClassVar[str] = """@inproceedings{lee2024fedgf,
  title = {Rethinking the Flat Minima Searching in Federated Learning},
  author = {Lee, Taehwan and Yoon, Sung Whan},
  booktitle = {ICML},
  year = {2024}
}"""

    rho: NonNegative = 0.1
    """Radius ρ of the clients' perturbation."""
    rho_global: NonNegative | None = None
    """Radius of the server's perturbation; as ρ unless given."""
    threshold: Annotated[float, Range(0, finite=False)] = 0.2
    """T_D: mean distance of local models from the global one above which a round counts as diverged."""
    window: Count = 30
    """W: number of rounds over which c is the share of diverged ones."""
    static_c: Fraction | None = None
    """A constant c instead of the adaptive one."""

    def init_server(self, params: Tensor) -> Server:
        """No round played: w̃ = w and c = 0."""
        zero = params.new_zeros(())
        return Server(params, torch.zeros_like(params), zero, params.new_full((self.window,), -1.0), zero.clone())

    def broadcast(self, server: Server) -> Message:
        """The model, its perturbed twin and how much of it to use."""
        return Message(server.params, server.perturbed, server.c)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Any) -> tuple[Tensor, Any]:
        """The gradient between the local and the global climb (eqs. 8-13)."""
        local = w + self.rho * unit(task.grad(w, batch))
        return task.grad(msg.c * msg.perturbed + (1 - msg.c) * local, batch), client

    def reply(self, w: Tensor, msg: Message, client: Any, local: Local) -> tuple[Reply, Any]:
        """The change and its length."""
        return Reply(w - msg.params, norm(w - msg.params)), client

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average, climb along the pseudo-gradient, count diverged rounds."""
        distance, delta = cohort.uniform.distance, cohort.mean.delta
        flags = torch.cat([server.flags[1:], (distance > self.threshold).to(distance.dtype)[None]])
        c = flags.clamp(min=0).sum() / (flags >= 0).sum()
        c = c if self.static_c is None else torch.full_like(c, self.static_c)
        radius = self.rho if self.rho_global is None else self.rho_global
        return Server(server.params + delta, -radius * unit(delta), c, flags, distance)
