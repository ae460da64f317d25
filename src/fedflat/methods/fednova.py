"""FedNova (Wang et al., 2020, eq. 6): average the change per step, for clients that take different numbers of steps.

down w | up (w_k − w) / a_k, a_k | client keeps – | server keeps w

a_k = (K_k − m (1 − m^K_k) / (1 − m)) / (1 − m) with client momentum m;  τ = Σ p_k a_k
w ← w + τ Σ p_k (w_k − w) / a_k

a_k is the number of steps, corrected for momentum. In FedAvg a client that takes more steps pulls the model further
towards its own optimum; here all pull equally for equal weights p_k.

With gradient = "released", clients keep d_k = (w − w_k) / (η a_k) of the last time they took part, at first zeros, and
their direction is ∇f(w_k) − d_k, as in FedSOL's released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import effective_steps, mean_direction


class Client(NamedTuple):
    """The direction d_k of the client's average step when it last took part, [P]."""

    d: Tensor


class Reply(NamedTuple):
    """The change per effective step (w_k − w) / a_k, [P], and the number a_k of effective steps."""

    delta: Tensor
    steps: Tensor


@dataclass(frozen=True)
class FedNova(Method):
    """Average the clients' changes, divided by their numbers of steps."""

    citation: ClassVar[str] = """@inproceedings{wang2020fednova,
  title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
  author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
  booktitle = {NeurIPS},
  year = {2020}
}"""
    bookkeeping: ClassVar[tuple[str, ...]] = ("steps",)

    gradient: Literal["plain", "released"] = "plain"
    """The local gradient (plain), or minus the client's own last mean direction, as in FedSOL's code (released)."""

    def init_client(self, params: Tensor) -> Any:
        """Return a direction of zeros if directions are subtracted, otherwise nothing."""
        return Client(torch.zeros_like(params)) if self.gradient == "released" else ()

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient, with "released" minus the direction of the client's average step the last time."""
        g = task.grad(w, batch)
        return g - client.d if self.gradient == "released" else g, client

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, Any]:
        """Return the change per effective step and the number of effective steps."""
        delta, steps = w - msg.params, effective_steps(local)
        kept = Client(mean_direction(delta, local, "momentum")) if self.gradient == "released" else client
        return Reply(delta / steps, steps), kept

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Move along the mean change per step, as many steps as the average client took."""
        return server._replace(params=server.params + cohort.mean.steps * cohort.mean.delta)
