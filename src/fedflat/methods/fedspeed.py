"""FedSpeed (Sun et al., 2023, Algorithm 1): SAM's gradient, a proximal term and a correction of the term's bias.

down w | up w_k − λ ĝ_k − w | client keeps ĝ_k | server keeps w, ĝ

direction = (1 − α) g + α ∇f(w_k + ρ g / ‖g‖) − ĝ_k + (w_k − w) / λ,  g = ∇f(w_k);  ρ g with ascent = "raw"
ĝ_k ← ĝ_k − (w_k − w) / λ;  w ← Σ p_k (w_k − λ ĝ_k)

With dual = "released", as in the authors' code, clients send w_k − w and the server corrects by the mean ĝ of all
clients' ĝ_k:  ĝ ← ĝ − Σ_S (w_k − w) / (λ N);  w ← Σ p_k w_k − λ ĝ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.shared import mean_change
from fedflat.options import Fraction, NonNegative, Positive


class Server(NamedTuple):
    """The global model w, [P], and the mean ĝ of all clients' corrections, [P] (a scalar 0 with dual = "paper")."""

    params: Tensor
    ghat: Tensor


class Client(NamedTuple):
    """The client's correction ĝ_k, [P]."""

    ghat: Tensor


@dataclass(frozen=True)
class FedSpeed(Method):
    """Mixed plain and perturbed gradients with a corrected proximal term."""

    citation: ClassVar[str] = """@inproceedings{sun2023fedspeed,
  title = {{FedSpeed}: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy},
  author = {Sun, Yan and Shen, Li and Huang, Tiansheng and Ding, Liang and Tao, Dacheng},
  booktitle = {ICLR},
  year = {2023}
}"""

    rho: NonNegative = 0.15
    """Radius ρ of the perturbation."""
    mix: Fraction = 0.95
    """Share α of the perturbed gradient."""
    lam: Positive = 100.0
    """λ: inverse weight of the proximal term."""
    dual: Literal["paper", "released"] = "paper"
    """Corrections ĝ_k in the average: the cohort's (Algorithm 1 of the paper) or all clients' (the released code)."""
    ascent: Literal["unit", "raw"] = "unit"
    """Perturbation of length ρ (unit), or ρ times the gradient itself (raw)."""

    def init_server(self, params: Tensor) -> Server:
        """Return the initial model and a correction of zeros."""
        return Server(params, torch.zeros_like(params) if self.dual == "released" else params.new_zeros(()))

    def init_client(self, params: Tensor) -> Client:
        """Return a correction of zeros."""
        return Client(torch.zeros_like(params))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """Return the mixed gradient with the correction and the proximal term."""
        g = task.grad(w, batch)
        climb = self.rho * (g if self.ascent == "raw" else unit(g))
        mixed = (1 - self.mix) * g + self.mix * task.grad(w + climb, batch)
        return mixed - client.ghat + (w - msg.params) / self.lam, client

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model (in the paper corrected by λ ĝ_k) and the updated correction."""
        delta = w - msg.params
        ghat = client.ghat - delta / self.lam
        return Reply(delta - self.lam * ghat if self.dual == "paper" else delta), Client(ghat)

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Average the replies; in the released variant correct the average by the mean of all clients' ĝ_k."""
        params = server.params + cohort.mean.delta
        if self.dual == "paper":
            return Server(params, server.ghat)
        ghat = server.ghat - mean_change(cohort) / self.lam
        return Server(params - self.lam * ghat, ghat)
