"""The Hessian of the mean loss as a linear map: largest eigenvalues, trace and spectral density."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor
from torch.func import jvp, vmap

from fedflat.core.task import Batch, Task
from fedflat.errors import UserError
from fedflat.flatness.data import Data
from fedflat.flatness.precision import full_precision


class Hessian:
    """H = ∇²F(w) with F the mean loss over `data`.

    Hv = d/dt ∇F(w + t v) at t = 0: forward mode over reverse mode, summed over the batches, about four gradients' work.
    """

    def __init__(self, task: Task, w: Tensor, data: Data) -> None:
        self.task, self.w, self.data, self.size = task, w, data, len(w)

    @torch.no_grad()
    @full_precision()
    def apply(self, v: Tensor) -> Tensor:
        """Hv."""
        return self.data.mean(lambda batch: self._product(batch, v))

    def _product(self, batch: Batch, v: Tensor) -> Tensor:
        return jvp(lambda w: self.task.grad(w, batch), (self.w,), (v,))[1]

    def matrix(self) -> Tensor:
        """H itself [P, P], symmetric up to rounding."""
        identity = torch.eye(self.size, dtype=self.w.dtype, device=self.w.device)
        return check_finite(vmap(self.apply, chunk_size=64)(identity))

    def operator(self, advance: Callable[[], None] = lambda: None) -> LinearOperator:
        """H for SciPy; `advance` hears of every product."""
        kind = np.float64 if self.w.dtype == torch.float64 else np.float32

        def product(v: np.ndarray) -> np.ndarray:
            advance()
            return check_finite(self.apply(torch.from_numpy(v.ravel().astype(kind)).to(self.w))).cpu().numpy()

        return LinearOperator((self.size, self.size), matvec=product, dtype=kind)


def check_finite(products: Tensor) -> Tensor:
    """What solvers may be given; else a UserError."""
    if not torch.isfinite(products).all():
        raise UserError(
            "the Hessian is not finite: the loss overflows; train with a lower --lr, or leave this out of --what"
        )
    return products
