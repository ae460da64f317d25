"""Control variates: estimates of each client's and of the mean gradient, whose difference is the client's drift.

Δc_k = −c + (w − w_k) / (K η);  c_k ← c_k + Δc_k;  c ← c + (1/N) Σ_S Δc_k
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.method import Cohort, Local
from fedflat.steps import Steps, mean_direction


class Server(NamedTuple):
    params: Tensor
    c: Tensor


class Message(NamedTuple):
    params: Tensor
    c: Tensor


class Client(NamedTuple):
    c: Tensor


class Reply(NamedTuple):
    delta: Tensor
    c: Tensor


def start(params: Tensor) -> tuple[Server, Client]:
    """No drift known."""
    return Server(params, torch.zeros_like(params)), Client(torch.zeros_like(params))


def reply(w: Tensor, msg: Message, client: Client, local: Local, steps: Steps) -> tuple[Reply, Client]:
    """The changes of the model and of the client's control variate."""
    change = mean_direction(w - msg.params, local, steps) - msg.c
    return Reply(w - msg.params, change), Client(client.c + change)


def update(server: Server, cohort: Cohort) -> Server:
    """Average the models; c is the mean over all clients, most of which did not change theirs."""
    c = server.c + cohort.size / cohort.population * cohort.uniform.c
    return Server(server.params + cohort.mean.delta, c)
