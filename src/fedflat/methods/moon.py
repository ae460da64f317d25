"""MOON (Li et al., 2021, Algorithm 1): features like the global model's, unlike those of the client's last model.

down w | up w_k − w | client keeps w_k | server keeps w

direction = ∇[f(w_k) + μ CE([cos(z, z_w), cos(z, z_prev)] / τ, 0)],  z the penultimate features
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from fedflat.core.method import Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import cosine
from fedflat.errors import UserError
from fedflat.options import NonNegative, Positive


class Client(NamedTuple):
    previous: Tensor


@dataclass(frozen=True)
class MOON(Method):
    """Model-contrastive learning."""

    citation: ClassVar[str] = """@inproceedings{li2021moon,
  title = {Model-Contrastive Federated Learning},
  author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
  booktitle = {CVPR},
  year = {2021}
}"""

    mu: NonNegative = 0.1
    """Weight μ of the contrastive loss."""
    tau: Positive = 0.5
    """Temperature τ of the contrastive loss."""

    def init_client(self, params: Tensor) -> Client:
        """The initial model stands for the one not yet trained."""
        return Client(params.clone())

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """The gradient of cross entropy and contrast; one pass through the body serves both."""
        if not task.has_head:
            raise UserError("method moon: the model has no parts `features` and `head`; use another model")
        towards, away = task.features(msg.params, batch), task.features(client.previous, batch)

        def loss(v: Tensor) -> Tensor:
            z = task.features(v, batch)
            likeness = torch.stack([cosine(z, towards), cosine(z, away)], -1) / self.tau
            contrast = likeness.logsumexp(-1) - likeness[:, 0]
            return task.cross_entropy(task.head(v, z), batch) + self.mu * task.mean(contrast, batch)

        return grad(loss)(w), client

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """Send the change, keep the model."""
        return Reply(w - msg.params), Client(w)
