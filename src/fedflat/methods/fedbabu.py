"""FedBABU (Oh et al., 2022, Algorithm 1): train the body under a random head that stays as it is.

down w | up w_k − w | client keeps where the head lies | server keeps w

direction = ∇f on the body, at the body of w_k and the head of w; the head's part of what is sent is 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.errors import UserError
from fedflat.method import Local, Method, Reply
from fedflat.task import Batch, Task


class Client(NamedTuple):
    head: Tensor  # how many places before the end of w the head begins and ends


@dataclass(frozen=True)
class FedBABU(Method):
    """Body aggregation and body update; the head is for fine-tuning afterwards."""

    citation: ClassVar[str] = """@inproceedings{oh2022fedbabu,
  title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {ICLR},
  year = {2022}
}"""

    def init_client(self, params: Tensor) -> Client:
        """Not yet known."""
        return Client(params.new_zeros(2))

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """Weight decay may shrink the head of w, so it is neither used here nor sent."""
        if not task.has_head:
            raise UserError("method fedbabu: the model has no parts `features` and `head`; use another model")
        head = task.mask("head.", w.device)
        g = task.grad(torch.where(head, msg.params, w), batch)
        return torch.where(head, 0, g), Client(_span(head).to(w.dtype))

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Reply, Client]:
        """The change of the body."""
        left = torch.arange(len(w), 0, -1, device=w.device)
        head = (left <= client.head[0]) & (left > client.head[1])
        return Reply(torch.where(head, 0, w - msg.params)), client


def _span(head: Tensor) -> Tensor:
    """Where a module's parameters, which lie side by side, begin and end, counted from the end of w."""
    begins = len(head) - head.to(torch.int8).argmax()
    return torch.stack([begins, begins - head.sum()])
