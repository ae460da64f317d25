"""FedDecorr (Shi et al., 2023): a penalty on the correlation of features, against their collapse to few dimensions.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇[f(w_k) + β L(w_k)]
L = (1/B) mean_{i≠j} (SᵀS)_ij²,  S = (Z − mean Z) / √(var Z + 1e-8),  Z the features of the batch, [B, d]

With scale = "paper", L = ‖K‖_F² / d² with the correlation matrix K = SᵀS / (B − 1). Both are 0 for a single sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.methods.shared import feature_vectors
from fedflat.options import NonNegative


@dataclass(frozen=True)
class FedDecorr(Method):
    """Cross entropy and decorrelation of the features before the last layer."""

    citation: ClassVar[str] = """@inproceedings{shi2023feddecorr,
  title = {Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning},
  author = {Shi, Yujun and Liang, Jian and Zhang, Wenqing and Tan, Vincent Y. F. and Bai, Song},
  booktitle = {ICLR},
  year = {2023}
}"""

    beta: NonNegative = 0.1
    """Weight β of the penalty."""
    scale: Literal["released", "paper"] = "released"
    """Scale of the penalty L: that of the released code, about B times as large, or that of the paper."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient of cross entropy and penalty; both use the same features.

        Raises:
            UserError: the model has no vectors of features.
        """

        def loss(v: Tensor) -> Tensor:
            z = feature_vectors(task, v, batch, "feddecorr")
            return task.output_loss(task.head(v, z), batch) + self.beta * self._correlation(z, batch)

        return grad(loss)(w), client

    def _correlation(self, z: Tensor, batch: Batch) -> Tensor:
        """Return L, a scalar, from the features z of the batch, [B, d]; padding has no part in it."""
        mask, size, d = batch.mask[:, None], batch.mask.sum(), z.shape[-1]
        centred = (z - (z * mask).sum(0) / size.clamp(min=1)) * mask
        s = centred / (centred.square().sum(0) / (size - 1).clamp(min=1) + 1e-8).sqrt()
        products = s.T @ s
        if self.scale == "paper":
            return (products / (size - 1).clamp(min=1)).square().sum() / d**2
        off_diagonal = products.square().sum() - products.diagonal().square().sum()
        return off_diagonal / (d * (d - 1)) / size.clamp(min=1)
