"""FedProx (Li et al., 2020, Algorithm 2): keep local models close to the global one.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇f(w_k) + μ (w_k − w)

Clients minimise f(w_k) + μ/2 ‖w_k − w‖², so that they move less far from w on heterogeneous data. With μ = 0 it is
FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.options import NonNegative


@dataclass(frozen=True)
class FedProx(Method):
    """A quadratic penalty on the distance from the global model."""

    citation: ClassVar[str] = """@inproceedings{li2020fedprox,
  title = {Federated Optimization in Heterogeneous Networks},
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and
            Smith, Virginia},
  booktitle = {MLSys},
  year = {2020}
}"""

    mu: NonNegative = 1.0
    """Weight μ of the penalty."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient of f(w_k) + μ/2 ‖w_k − w‖²."""
        return task.grad(w, batch) + self.mu * (w - msg.params), client
