"""Normalisation and dropout layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedflat.models.layers import BatchNorm, Dropout, GroupNorm


def with_distinct_weights(layer: nn.Module) -> nn.Module:
    """Return the layer in float64 with different weights and biases for every channel."""
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.linspace(0.5, 2, parameter.numel()))
    return layer


def test_masked_batchnorm_equals_torch_on_the_unpadded_batch():
    ours, theirs = (
        with_distinct_weights(BatchNorm(4)),
        with_distinct_weights(nn.BatchNorm2d(4, track_running_stats=False)),
    )
    x = torch.randn(6, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False, True])
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))
    weight = torch.randn(4, 4, 3, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad((theirs(x[mask]) * weight).sum(), x)
    (actual,) = torch.autograd.grad((ours(x, mask)[mask] * weight).sum(), x)
    torch.testing.assert_close(actual, expected)


def test_masked_batchnorm_of_vectors_equals_torch():
    ours, theirs = (
        with_distinct_weights(BatchNorm(4)),
        with_distinct_weights(nn.BatchNorm1d(4, track_running_stats=False)),
    )
    x, mask = torch.randn(6, 4, dtype=torch.float64), torch.tensor([True, False, True, True, False, True])
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))


def test_batchnorm_of_padding_only_stays_finite():
    x = torch.zeros(2, 4, 3, 3, requires_grad=True)
    layer = BatchNorm(4)
    layer(x, torch.zeros(2, dtype=torch.bool)).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.parametrize("shape", [(6, 4, 5), (6,)], ids=["images", "vectors"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *((GroupNorm(groups, 6), nn.GroupNorm(groups, 6)) for groups in (1, 2, 6)),
        (BatchNorm(6), nn.BatchNorm2d(6, track_running_stats=False)),
        (BatchNorm(6, affine=False, eps=0.1), nn.BatchNorm2d(6, affine=False, eps=0.1, track_running_stats=False)),
    ],
    ids=repr,
)
def test_norms_and_their_gradients_equal_torch_for_one_model_and_for_many(ours, theirs, shape):
    """One model uses torch's functions, many have formulas of ours."""
    if type(ours) is GroupNorm and len(shape) == 1:
        pytest.skip("GroupNorm is for images")
    ours, theirs = with_distinct_weights(ours), with_distinct_weights(theirs)
    theirs._check_input_dim = lambda x: None  # takes vectors as well
    x, weight = 3 + torch.randn(2, 5, *shape, dtype=torch.float64), torch.randn(2, 5, *shape, dtype=torch.float64)
    norm = (lambda t: ours(t, torch.ones(5, dtype=torch.bool))) if type(ours) is BatchNorm else ours

    def slopes(layer):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(sum((layer(t) * u).sum() for t, u in zip(leaf, weight, strict=True)), leaf)[0]

    expected = torch.stack([theirs(t) for t in x]).detach(), slopes(theirs)
    torch.testing.assert_close((torch.stack([norm(t) for t in x]).detach(), slopes(norm)), expected)
    many = vmap(norm)(x).detach(), vmap(grad(lambda t, u: (norm(t) * u).sum()))(x, weight)
    torch.testing.assert_close(many, expected)


def test_dropout_is_the_identity_without_keys():
    x = torch.randn(3, 7)
    assert Dropout(0.5, number=1)(x, None) is x


def test_dropout_of_a_sample_depends_on_its_key_only():
    x, key = torch.ones(5, 4, 3, 3), torch.arange(5)
    layer = Dropout(0.5, number=1)
    together = layer(x, key)
    for sample in range(5):
        assert torch.equal(layer(x[sample : sample + 1], key[sample : sample + 1])[0], together[sample])
    assert len({tuple(row.flatten().tolist()) for row in together}) == 5


def test_layers_of_one_model_drop_different_units():
    x, key = torch.ones(1, 100), torch.tensor([3])
    assert not torch.equal(Dropout(0.5, number=1)(x, key), Dropout(0.5, number=2)(x, key))


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_dropout_keeps_the_expectation(p):
    out = Dropout(p, number=1)(torch.ones(200, 500), torch.arange(200))
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    # The mean of 100,000 draws has standard deviation √(p / (1 − p) / 100,000) ≤ 0.0032.
    assert out.mean().item() == pytest.approx(1, abs=0.013)
    assert out.mean(0).std().item() == pytest.approx((p / (1 - p) / 200) ** 0.5, rel=0.2)


NORMS = {"batch": lambda x: BatchNorm(2)(x, torch.ones(len(x))), "group": GroupNorm(1, 2)}


@pytest.mark.parametrize("layer", NORMS.values(), ids=NORMS)
def test_half_floats_are_normalised_in_more_bits(layer):
    """64 · 32 · 32 = 65536 pixels, and squares of values above 255, are too large for 16 bits."""
    x = 300 * torch.randn(64, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = layer(x.half()).float()
    assert abs(float(found.std()) - 1) < 0.01
    torch.testing.assert_close(found, layer(x).detach(), rtol=0, atol=0.01)


def test_outside_a_task_dropout_is_a_plain_layer_of_torch() -> None:
    """So a loaded model can be called and trained further like any other."""
    x, units, channels = torch.ones(4, 50, 6), Dropout(0.5, number=1), Dropout(0.5, number=1, whole_channels=True)
    assert torch.equal(units.eval()(x), x)
    dropped = units.train()(x)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert dropped.std(-1).any(), "units of a channel on their own"
    dropped = channels.train()(x)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not dropped.std(-1).any(), "whole channels"
