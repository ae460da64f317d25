"""Per-FedAvg (Fallah et al., 2020, Algorithm 1, first order): a model that is good after one local step.

down w | up w_k − w | client keeps – | server keeps w

direction = ∇f(w_k − α ∇f(w_k; B); B′), with B and B′ the samples at even and at odd places of the batch

The second derivatives of the original are left out (first order).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.task import Batch, Task
from fedflat.options import NonNegative


@dataclass(frozen=True)
class PerFedAvg(Method):
    """Model-agnostic meta-learning: minimise the loss after one local step, without second derivatives."""

    citation: ClassVar[str] = """@inproceedings{fallah2020perfedavg,
  title = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle = {NeurIPS},
  year = {2020}
}"""

    inner_lr: NonNegative = 0.01
    """Learning rate α of the inner step, after which the gradient is taken."""

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        """Return the gradient after one inner step, on samples that the inner step does not use."""
        first, second = _split_batch(batch)
        return task.grad(w - self.inner_lr * task.grad(w, first), second), client


def _split_batch(batch: Batch) -> tuple[Batch, Batch]:
    """Return the samples at even and at odd places, by masks; a single sample is in both halves."""
    odd = torch.arange(len(batch.y), device=batch.y.device) % 2 == 1
    alone = batch.mask.sum() == 1
    return batch._replace(mask=batch.mask & ~odd), batch._replace(mask=batch.mask & (odd | alone))
