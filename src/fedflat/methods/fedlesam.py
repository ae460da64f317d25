"""FedLESAM (Fan et al., 2024): a perturbation along the path of the global model, at the price of one gradient.

down w | up w_k − w | client keeps v_k, a_k | server keeps w

ε_k = ρ (v_k − w) / ‖v_k − w‖, the same in all steps of a round; 0 if the client takes part for the first time
direction = ∇f(w_k + ε_k);  v_k ← w, a_k ← 1;  w ← w + Σ p_k (w_k − w)

v_k is the global model that the client received when it last took part; a_k tells whether it ever did. With
reference = "round", as in the released code, v_k is the global model of the round before, the same for all clients.

With base = "scaffold" (FedLESAM-S) or "feddyn" (FedLESAM-D) clients and server do what SCAFFOLD or FedDyn do, with
∇f(w_k + ε_k) in place of ∇f(w_k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import unit
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.methods.shared import PerturbedTask, StepCount
from fedflat.options import NonNegative, Positive


class Server(NamedTuple):
    """The base's state, with the model w, and with reference = "round" the model of the round before, [P], else ()."""

    inner: Any
    previous: Any

    @property
    def params(self) -> Tensor:
        """The global model w, [P]."""
        return self.inner.params


class Message(NamedTuple):
    """The base's message, with the model w, and with reference = "round" the one of the round before, [P], else ()."""

    inner: Any
    previous: Any

    @property
    def params(self) -> Tensor:
        """The global model w, [P]."""
        return self.inner.params


class Client(NamedTuple):
    """The client's state.

    Args:
        inner: the base's state of the client.
        old: the global model v_k that the client received last, [P], 0 if it never did; () with reference = "round".
        active: 1 if the client has taken part, else 0, []; () with reference = "round".
    """

    inner: Any
    old: Any
    active: Any


@dataclass(frozen=True)
class FedLESAM(Method):
    """SAM with the last change of the global model in place of the first gradient."""

    citation: ClassVar[str] = """@inproceedings{fan2024fedlesam,
  title = {Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-aware
           Minimization},
  author = {Fan, Ziqing and Hu, Shengchao and Yao, Jiangchao and Niu, Gang and Zhang, Ya and Sugiyama, Masashi and
            Wang, Yanfeng},
  booktitle = {ICML},
  year = {2024}
}"""

    rho: NonNegative = 0.1
    """Radius ρ of the perturbation."""
    base: Literal["none", "scaffold", "feddyn"] = "none"
    """Correction of the clients' drift: none, SCAFFOLD's (FedLESAM-S) or FedDyn's (FedLESAM-D)."""
    reference: Literal["client", "round"] = "client"
    """v_k: the model that the client received last, or that of the round before for all (the released code)."""
    dyn_alpha: Positive = 0.1
    """Weight α of FedDyn's penalty, for base = "feddyn"."""
    steps: StepCount = "momentum"
    """Number of steps K in SCAFFOLD's control variates: as counted (plain), or corrected for the client's momentum."""

    def _base(self) -> Method:
        """Return the method whose gradients are taken at the perturbed model; without a base, FedAvg."""
        return {"none": Method(), "scaffold": SCAFFOLD(self.steps), "feddyn": FedDyn(self.dyn_alpha)}[self.base]

    def init_server(self, params: Tensor) -> Server:
        """Return the base's initial state; the initial model is also the one before."""
        return Server(self._base().init_server(params), params.clone() if self.reference == "round" else ())

    def init_client(self, params: Tensor) -> Client:
        """Return the state of a client that has received no model yet."""
        never: tuple[Any, Any] = (torch.zeros_like(params), params.new_zeros(()))
        return Client(self._base().init_client(params), *(((), ()) if self.reference == "round" else never))

    def broadcast(self, server: Server) -> Message:
        """Return the base's message, and the model of the round before if clients need it."""
        return Message(self._base().broadcast(server.inner), server.previous)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Message, client: Client) -> tuple[Tensor, Client]:
        """Return the base's direction with the gradient at the perturbed model."""
        perturbed = PerturbedTask(task, self._perturbation(msg, client))
        direction, inner = self._base().step(perturbed, w, batch, msg.inner, client.inner)
        return direction, client._replace(inner=inner)

    def _perturbation(self, msg: Message, client: Client) -> Tensor:
        """Return ε_k, [P]."""
        if self.reference == "round":
            return self.rho * unit(msg.previous - msg.params)
        return self.rho * client.active * unit(client.old - msg.params)

    def reply(self, w: Tensor, msg: Message, client: Client, local: Local) -> tuple[Any, Client]:
        """Return the base's reply; the client keeps the model that it received."""
        reply, inner = self._base().reply(w, msg.inner, client.inner, local)
        if self.reference == "round":
            return reply, Client(inner, (), ())
        return reply, Client(inner, msg.params, torch.ones_like(client.active))

    def update(self, server: Server, cohort: Cohort) -> Server:
        """Return the base's next state."""
        return Server(self._base().update(server.inner, cohort), server.params if self.reference == "round" else ())
