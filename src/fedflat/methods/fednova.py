"""FedNova (Wang et al., 2020, eq. 6): average the change per step, for clients that take different numbers of steps.

down w | up (w_k − w) / a_k, a_k | client keeps – | server keeps w

a_k = (K_k − m (1 − m^K_k) / (1 − m)) / (1 − m) with client momentum m;  τ = Σ p_k a_k
w ← w + τ Σ p_k (w_k − w) / a_k

a_k is the number of steps, corrected for momentum. In FedAvg a client that takes more steps pulls the model further
towards its own optimum; here all pull equally for equal weights p_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.methods.shared import effective_steps


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

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, Any]:
        """Return the change per effective step and the number of effective steps."""
        steps = effective_steps(local)
        return Reply((w - msg.params) / steps, steps), client

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Move along the mean change per step, as many steps as the average client took."""
        return server._replace(params=server.params + cohort.mean.steps * cohort.mean.delta)
