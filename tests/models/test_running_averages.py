"""Running averages of batch normalisation: those of torch on unpadded batches, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.task import Batch, Task
from fedflat.models.adapt import adapt_layers
from fedflat.models.layers import BatchNorm


def network(momentum: float = 0.1) -> nn.Module:
    """A network with layers of images and of vectors, and one that it calls twice."""
    torch.manual_seed(0)
    twice = nn.BatchNorm2d(4, momentum=momentum)
    body = (nn.Conv2d(3, 4, 3), twice, nn.ReLU(), nn.Conv2d(4, 4, 1), twice)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()


def adapted(model: nn.Module) -> tuple[Task, Tensor]:
    task = Task(adapt_layers(model, track=True)[0])
    return task, task.flatten(dict(task.model.named_parameters())).detach()


def batch(samples: int, padding: int, seed: int) -> Batch:
    rows = samples + padding
    x = 2 + torch.randn(rows, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Batch(x, torch.zeros(rows, dtype=torch.int64), torch.arange(rows) < samples, torch.arange(rows))


def averages(model: nn.Module) -> NormStatistics:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    return NormStatistics(*(torch.cat([getattr(la, n) for la in layers]) for n in NormStatistics._fields))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 7), st.integers(0, 3)), min_size=1, max_size=4), st.floats(0.01, 1.0))
def test_the_averages_of_torch_on_the_real_samples(sizes, momentum):
    model = network(momentum).train()
    task, w = adapted(model)
    statistics = again = task.initial_statistics(w)
    for number, (samples, padding) in enumerate(sizes):
        data = batch(samples, padding, number)
        gradient, statistics = task.grad_and_statistics(w, data, statistics)
        again = task.next_statistics(w, data, again)
        model(data.x[:samples])
        assert torch.equal(gradient, task.grad(w, data))
    for ours, other, theirs in zip(statistics, again, averages(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert torch.equal(ours, other)


def test_evaluation_by_the_averages_equals_torch():
    model = network().train()
    model(batch(6, 0, 1).x)
    task, w = adapted(model)
    data, statistics = batch(5, 0, 2)._replace(key=None), task.initial_statistics(w)
    expected = model.eval()(data.x)
    torch.testing.assert_close(task.with_statistics(statistics).outputs(w, data), expected, rtol=0, atol=1e-12)
    module = task.with_statistics(statistics).module(w)
    torch.testing.assert_close(module(data.x), expected, rtol=0, atol=1e-12)
    assert not network().load_state_dict(module.state_dict()).missing_keys
    assert not torch.allclose(task.outputs(w, data), expected), "without averages the batch's own moments count"
    trained = task.with_statistics(statistics).outputs(w, data._replace(key=torch.arange(5)))
    assert torch.equal(trained, task.outputs(w, data)), "samples with keys are for training"


def test_outside_a_task_the_layer_is_torchs():
    ours, theirs = BatchNorm(3).double(), nn.BatchNorm1d(3).double()
    ours.track()
    ours.double()
    for n in range(3):
        x = torch.randn(4 + n, 3, dtype=torch.float64)
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=1e-12)


def test_a_single_value_has_no_variance():
    layer = BatchNorm(2)
    layer.track()
    layer(torch.tensor([[3.0, 5.0]]))
    assert torch.allclose(layer.running_mean, torch.tensor([0.3, 0.5]))
    assert torch.equal(layer.running_var, torch.ones(2))


def test_layers_of_torch_without_averages_stay_without():
    model = nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3, affine=False)
    )
    task, w = adapted(model)
    assert list(task.norm_layers) == ["2"]
    assert task.initial_statistics(w).running_var.shape == (3,)


def test_an_average_over_all_batches_is_refused():
    with pytest.raises(ff.UserError, match="model: BatchNorm with momentum=None averages over all batches"):
        adapt_layers(nn.Sequential(nn.BatchNorm1d(3, momentum=None)), track=True)
