"""FedNova (Wang et al., 2020, eq. 6): average directions, not distances, when clients take unequal numbers of steps.

down w | up (w_k − w) / a_k, a_k | client keeps – | server keeps w

a_k = (K_k − m (1 − m^K_k) / (1 − m)) / (1 − m) with client momentum m;  τ = Σ p_k a_k
w ← w + τ Σ p_k (w_k − w) / a_k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.methods.shared import effective_steps


class Reply(NamedTuple):
    delta: Tensor
    steps: Tensor


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging."""

    citation: ClassVar[str] = """@inproceedings{wang2020fednova,
  title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
  author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
  booktitle = {NeurIPS},
  year = {2020}
}"""

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, Any]:
        """The change per effective step, and their number."""
        steps = effective_steps(local)
        return Reply((w - msg.params) / steps, steps), client

    def update(self, server: Any, cohort: Cohort) -> Any:
        """As many steps as the average client took."""
        return server._replace(params=server.params + cohort.mean.steps * cohort.mean.delta)
