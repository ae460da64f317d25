"""Loss and accuracy of models on many samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedflat.core.task import Batch, Task
from fedflat.kernels.layers import use_lane_ops

BATCH = 2000  # samples evaluated at once


def evaluator(task: Task, device: torch.device) -> Task:
    """The task with which models are evaluated on `device`: on a GPU its convolutions are those of fedflat.kernels."""
    return Task(use_lane_ops(task.model), task.compute) if device.type == "cuda" else task


@torch.no_grad()
def evaluate(task: Task, params: Tensor, data: Batch, batch_size: int = BATCH) -> tuple[float, float]:
    """Mean cross entropy and accuracy of the model `params` on `data`."""
    loss = correct = torch.zeros((), dtype=torch.float64, device=params.device)
    for start in range(0, len(data.y), batch_size):
        x, y, mask = (t[start : start + batch_size] for t in data[:3])
        batch = Batch(x, y, mask, None)
        logits = task.logits(params, batch)
        loss = loss + task.cross_entropy(logits, batch).double() * len(y)
        correct = correct + (logits.argmax(-1) == y).sum()
    loss, correct = torch.stack([loss, correct]).tolist()
    return loss / len(data.y), correct / len(data.y)


@torch.no_grad()
def predict(task: Task, params: Tensor, data: Batch) -> Tensor:
    """The class that the model `params` takes each sample for."""
    batches = zip(*(t.split(BATCH) for t in data[:3]), strict=True)
    return torch.cat([task.logits(params, Batch(x, y, mask, None)).argmax(-1) for x, y, mask in batches])
