"""FedExP (Jhunjhunwala et al., 2023): a server step that is longer the less the clients' changes agree.

down … | up …, ‖w_k − w‖² | client keeps … | server keeps …, e, η, w̄

η = max(1, Σ p_k ‖w_k − w‖² / (2 (‖w⁺ − w‖² + ε)));  w ← w + η (w⁺ − w);  w̄ = mean of the last two w

w⁺ is the inner method's next model: with FedAvg w⁺ − w = Σ p_k (w_k − w), as in the paper. Training goes on from w, and
w̄ is evaluated. In the line above, … stands for what the inner method sends and keeps, and e counts exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local
from fedflat.core.state import count_bytes
from fedflat.methods.wrappers import Wrapper, training_params, with_training_params
from fedflat.options import Positive


class Server(NamedTuple):
    """The server's state.

    Args:
        inner: the inner method's state.
        exchange: the number e of exchanges in this round, [].
        eta: the factor η of the last round, [], 0 before the first.
        evaluated: the model w̄ that is evaluated, [P].
    """

    inner: Any
    exchange: Tensor
    eta: Tensor
    evaluated: Tensor

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]."""
        return self.evaluated


class Reply(NamedTuple):
    """The inner method's reply and the squared length ‖w_k − w‖² of the change, []."""

    inner: Any
    square: Tensor


@dataclass(frozen=True)
class FedExP(Wrapper):
    """Extrapolate the server's step by a factor that the spread of the clients' changes determines."""

    citation: ClassVar[str] = """@inproceedings{jhunjhunwala2023fedexp,
  title = {{FedExP}: Speeding Up Federated Averaging via Extrapolation},
  author = {Jhunjhunwala, Divyansh and Wang, Shiqiang and Joshi, Gauri},
  booktitle = {ICLR},
  year = {2023}
}"""

    epsilon: Positive = 1e-3
    """ε in the denominator: limits the factor where the mean change is small."""
    epsilon_per: Literal["round", "client"] = "round"
    """ε is added once, or once for every client of the cohort (the released code)."""
    evaluate: Literal["mean", "last"] = "mean"
    """The model that is evaluated: the mean of the last two, or the last."""

    def init_server(self, params: Tensor) -> Server:
        """Return the inner method's initial state; the initial model is evaluated."""
        return Server(self.inner.init_server(params), params.new_zeros(()), params.new_zeros(()), params.clone())

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Reply, Any]:
        """Return the inner method's reply and the squared length of the change."""
        reply, kept = self.inner.reply(w, msg, client, local)
        return Reply(reply, (w - msg.params).square().sum()), kept

    def reply_bytes(self, reply: Reply) -> int:
        """Return the bytes of the inner method's reply and of the number."""
        return self.inner.reply_bytes(reply.inner) + count_bytes(reply.square)

    def inner_cohort(self, cohort: Cohort) -> Cohort:
        """Return the means of the inner method's replies."""
        return cohort._replace(mean=cohort.mean.inner, uniform=cohort.uniform.inner)

    def server_step(self, server: Server, inner: Any, cohort: Cohort) -> Server:
        """Extrapolate from the last model beyond the inner method's, and average the last two."""
        w = training_params(server.inner)
        change = training_params(inner) - w
        epsilon = self.epsilon * (cohort.size if self.epsilon_per == "client" else 1)
        eta = (cohort.mean.square / (2 * (change.square().sum() + epsilon))).clamp(min=1)
        new = w + eta * change
        before = torch.where(server.eta > 0, w, new)  # the initial model does not count
        evaluated = (before + new) / 2 if self.evaluate == "mean" else new
        return Server(with_training_params(inner, new), server.exchange, eta, evaluated)
