"""Whether local updates work against the global model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedflat.core.task import Batch
from fedflat.core.vectors import cosine
from fedflat.methods.fedsol_ablation import KL
from fedflat.probes.sight import Sight, Value


def proximal(sight: Sight) -> dict[str, Value]:
    """Proximal loss of the local models, and the angle between their updates and its gradient (FedSOL, Figure 2).

    loss = L_p(w_k; w) = KL(softmax(f_w / 3) ‖ softmax(f_{w_k} / 3))
    cosine = ⟨g_u, g_p⟩ / (‖g_u‖ ‖g_p‖), with g_p = ∇L_p(w_k; w) and g_u the direction that the method takes at w_k
    means over the batches of one epoch of the client's data, weighted by their size, then over the cohort; g_u where
    the method holds parameters fixed is 0

    Costs one local step, one gradient and one forward pass for each batch of one local epoch.
    """
    rows = torch.stack([_client(sight, number) for number in range(len(sight.ends))]).mean(0).tolist()
    return dict(zip(("loss", "cosine"), rows, strict=True))


def _client(sight: Sight, number: int) -> Tensor:
    """Mean loss and cosine of one client's model over its data."""
    epoch = list(_epoch(sight, number))
    found = torch.stack([_batch(sight, sight.ends[number], batch, sight.state(number)) for batch in epoch])
    sizes = found.new_tensor([len(batch.y) for batch in epoch])
    return sizes @ found / sizes.sum()


def _epoch(sight: Sight, number: int) -> Iterator[Batch]:
    """The batches of the client's first epoch in the round."""
    feed, job = sight.feed, sight.job
    steps = feed.lengths([job.seed], job.round, [job.clients[number]])[0] // feed.epochs
    return islice(sight.batches(number), steps)


def _batch(sight: Sight, w: Tensor, batch: Batch, state: Any) -> Tensor:
    """Loss and cosine at w on one batch."""
    method, task = sight.method, sight.task
    teacher = task.logits(sight.start, batch)
    g_p, loss = grad_and_value(lambda v: KL().loss(task, task.logits(v, batch), teacher, batch))(w)
    g_u, _ = method.step(task, w, batch, sight.job.message, state)
    if method.frozen:
        g_u = torch.where(task.mask(method.frozen, w.device), 0, g_u)
    return torch.stack([loss, cosine(g_u, g_p)])
