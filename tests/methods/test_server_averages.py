"""Running averages on the server: where clients start, what those without samples send, which forward pass counts."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_problem as tiny
import torch
from torch import Tensor

import fedflat as ff
from fedflat.core.local_training import local_update
from fedflat.core.method import Method
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.task import Batch
from fedflat.engine.sequential import client_batches
from fedflat.methods.running_averages import LastStatistics, OwnStatistics, ServerStatistics, is_remembered

SENT = NormStatistics(torch.arange(4.0).double(), 1 + torch.arange(4.0).double())


def reply(method: Method, batches: list[Batch]) -> Any:
    """Return the reply of a client whose own averages are unusable."""
    method = ServerStatistics(method, tiny.AVERAGES)
    message = method.broadcast(method.init_server(tiny.params())._replace(statistics=SENT))
    unusable = NormStatistics(*(torch.full_like(t, torch.nan) for t in SENT))
    client = method.init_client(tiny.params())._replace(statistics=unusable)
    return local_update(method, tiny.task(method), tiny.sgd(), message, client, batches)[1]


def batches(client: int = 2) -> list[Batch]:
    return list(client_batches(tiny.client_data(), 0, 0, client, 0))


def moments(w: Tensor, batch: Batch) -> Tensor:
    """Return the means of the normalised layer's inputs."""
    body = tiny.Net().double().body
    torch.nn.utils.vector_to_parameters(w[:20], body.parameters())
    return body(batch.x).mean(0).detach()


def test_a_client_without_samples_sends_what_it_received() -> None:
    assert all(map(torch.equal, reply(ff.FedAvg(), []).statistics, SENT))


class Elsewhere(Method):
    """Takes its gradient far from w, and none at w."""

    def step(self, task: Any, w: Tensor, batch: Batch, msg: Any, client: Any) -> tuple[Tensor, Any]:
        return task.grad(w + 1, batch), client


@pytest.mark.parametrize("method", [ff.FedAvg(), ff.FedSAM(rho=0.5), ff.FedSOL(), ff.PerFedAvg(), Elsewhere()])
def test_the_first_step_averages_at_the_model_that_was_sent(method: Method) -> None:
    first = batches()[0]
    expected = 0.7 * SENT.running_mean + 0.3 * moments(tiny.params(), first)
    torch.testing.assert_close(reply(method, [first]).statistics.running_mean, expected, rtol=0, atol=1e-12)


def test_every_step_counts_once() -> None:
    one, two = batches()[:2]
    after = reply(ff.FedSAM(), [one])
    w = tiny.params() + after.inner.delta
    expected = 0.7 * after.statistics.running_mean + 0.3 * moments(w, two)
    torch.testing.assert_close(reply(ff.FedSAM(), [one, two]).statistics.running_mean, expected, rtol=0, atol=1e-12)


def test_a_client_remembers_what_its_method_keeps_and_its_own_averages() -> None:
    """A client that starts from the server's averages needs its last ones no more."""
    averages, kept = NormStatistics(torch.zeros(2), torch.ones(2)), ff.SCAFFOLD().init_client(torch.zeros(3))
    assert not is_remembered(LastStatistics((), averages))
    assert is_remembered(LastStatistics(kept, averages))
    assert is_remembered(OwnStatistics((), averages))
