"""MOON (Li et al., 2021, Algorithm 1): features similar to the global model's, unlike those of the client's last model.

down w | up w_k − w | client keeps w_k | server keeps w

direction = ∇[f(w_k) + μ CE([cos(z, z_w), cos(z, z_prev)] / τ, 0)],  z the penultimate features

z, z_w and z_prev are the features under w_k, under the received model w and under the client's model at the end of its
last round (the initial model before that). CE(…, 0) is the cross entropy whose true class is the first, cos(z, z_w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.gradient import grad
from fedflat.core.method import Local, Method, Reply
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import cosine
from fedflat.methods.shared import feature_vectors
from fedflat.options import NonNegative, Positive


class Client(NamedTuple):
    """The client's model at the end of its last round, [P]."""

    previous: Tensor


@dataclass(frozen=True)
class MOON(Method):
    """Cross entropy and a contrastive loss between the features of three models."""

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
        """Return the initial model in place of the client's last one."""
        return Client(params.clone())

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """Return the gradient of cross entropy and contrastive loss; both use the same features.

        Raises:
            UserError: the model has no vectors of features.
        """
        z_global, z_previous = (feature_vectors(task, v, batch, "moon") for v in (msg.params, client.previous))

        def loss(v: Tensor) -> Tensor:
            z = task.features(v, batch)
            contrast = self.contrast(task, z, z_global, z_previous, batch)
            return task.output_loss(task.head(v, z), batch) + self.mu * contrast

        return grad(loss)(w), client

    def contrast(self, task: Task, z: Tensor, z_global: Tensor, z_previous: Tensor, batch: Batch) -> Tensor:
        """Return the contrastive loss CE([cos(z, z_w), cos(z, z_prev)] / τ, 0), the mean over the batch.

        Args:
            task: computes the mean.
            z: features under the client's model, [B, F].
            z_global: features under the received model, [B, F].
            z_previous: features under the client's last model, [B, F].
            batch: the samples.
        """
        similarity = torch.stack([cosine(z, z_global), cosine(z, z_previous)], -1) / self.tau
        return task.mean(similarity.logsumexp(-1) - similarity[:, 0], batch)

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """Return the change of the model; the client keeps the model itself."""
        return Reply(w - msg.params), Client(w)
