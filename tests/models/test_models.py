"""Every model: its two parts, the images it takes, and its gradient for many clients at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedflat.errors import UserError
from fedflat.models import MODELS, build_model, cnn, resnet, vit

CLASSES = 3
SMALL = dict.fromkeys(MODELS, (1, 8, 8)) | {"lenet-cnn": (1, 16, 16), "mobilenetv2": (1, 32, 32)}


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor | None


def clients(shape: tuple[int, int, int], count: int = 2, size: int = 3) -> Batch:
    """One batch for each of `count` clients; the first client's last sample is padding."""
    mask = torch.ones(count, size, dtype=torch.bool)
    mask[0, -1] = False
    y, key = torch.randint(CLASSES, (count, size)), torch.randint(1 << 40, (count, size))
    return Batch(torch.randn(count, size, *shape, dtype=torch.float64), y, mask, key)


def inputs(model: nn.Module, batch: Batch) -> tuple:
    return (batch.x, batch) if model.takes_batch else (batch.x,)


def per_client_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.stack([p.detach(), 1.1 * p.detach()]) for name, p in model.named_parameters()}


def gradient(model: nn.Module) -> Callable[[dict[str, Tensor], Batch], dict[str, Tensor]]:
    def loss(weights: dict[str, Tensor], batch: Batch) -> Tensor:
        scores = functional_call(model, weights, inputs(model, batch)).log_softmax(-1)
        return -(scores.gather(1, batch.y[:, None])[:, 0] * batch.mask).sum()

    return grad(loss)


@pytest.mark.parametrize("name", MODELS)
def test_forward_is_head_of_features(name):
    model = build_model(name, SMALL[name], CLASSES).double()
    batch = Batch(*(part[0] for part in clients(SMALL[name])[:4]))
    features = model.features(*inputs(model, batch))
    assert features.ndim == 2
    assert torch.equal(model(*inputs(model, batch)), model.head(features))
    assert model.head(features).shape == (3, CLASSES)


@pytest.mark.parametrize("name", MODELS)
def test_state_is_parameters_only_and_head_is_named(name):
    model = build_model(name, SMALL[name], CLASSES)
    assert not list(model.buffers())
    head = {parameter for parameter, _ in model.named_parameters() if parameter.startswith("head.")}
    assert head == {f"head.{parameter}" for parameter, _ in model.head.named_parameters()}
    assert head


@pytest.mark.parametrize("name", MODELS)
def test_vmapped_gradient_equals_a_loop_over_clients(name):
    torch.manual_seed(0)
    model = build_model(name, SMALL[name], CLASSES).double()
    weights, batch = per_client_weights(model), clients(SMALL[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it falls back to a loop inside vmap
        together = vmap(gradient(model))(weights, batch)
    for client in range(2):
        own = {parameter: w[client] for parameter, w in weights.items()}
        alone = gradient(model)(own, Batch(*(part[client] for part in batch[:4])))
        for parameter in own:
            torch.testing.assert_close(together[parameter][client], alone[parameter], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "pfl-cnn"])
def test_padding_changes_neither_loss_nor_gradient(name):
    model = build_model(name, SMALL[name], CLASSES).double()
    padded = Batch(*(part[0] for part in clients(SMALL[name])[:4]))
    weights = {parameter: p.detach() for parameter, p in model.named_parameters()}
    unpadded = gradient(model)(weights, Batch(*(part[:-1] for part in padded[:4])))
    for parameter, value in gradient(model)(weights, padded).items():
        torch.testing.assert_close(value, unpadded[parameter], rtol=1e-9, atol=1e-10)


@pytest.fixture
def _shallow(monkeypatch):
    """Make the models shallow, with every kind of layer, because tracing takes time."""
    body = resnet.ResNetBody
    monkeypatch.setattr(resnet, "ResNetBody", lambda depth, norm: body(1, norm))
    monkeypatch.setattr(vit, "DEPTH", 1)
    monkeypatch.setattr(cnn, "MOBILENET_STAGES", cnn.MOBILENET_STAGES[:2])


@pytest.mark.usefixtures("_shallow")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet10"])
def test_gradient_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    model = build_model(name, SMALL[name], CLASSES).double()
    weights, batch = per_client_weights(model), clients(SMALL[name])
    step = vmap(gradient(model))
    compiled = torch.compile(step, fullgraph=True, backend="eager", dynamic=True)(weights, batch)
    for parameter, value in step(weights, batch).items():
        torch.testing.assert_close(compiled[parameter], value)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"digits-cnn", "mlp"}))
def test_grey_images_are_repeated_to_three_channels(name):
    _, *sides = SMALL[name]
    model = build_model(name, (3, *sides), CLASSES).double()
    batch = Batch(*(part[0] for part in clients(SMALL[name])[:4]))
    colour = batch._replace(x=batch.x.repeat(1, 3, 1, 1))
    torch.testing.assert_close(model(*inputs(model, batch)), model(*inputs(model, colour)))


def test_vgg_upsamples_by_repeating_pixels():
    model = build_model("vgg11", (3, 16, 16), CLASSES)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), model(x.repeat_interleave(2, 2).repeat_interleave(2, 3)))


def test_vgg_convolutions_start_as_in_the_reference():
    model = build_model("vgg11", (3, 32, 32), CLASSES)
    widening = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 256][-1]
    assert widening.weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)
    assert not widening.bias.any()


def test_normalisation_of_the_resnets():
    def kinds(name: str) -> list[str]:
        modules = build_model(name, (3, 32, 32), CLASSES).modules()
        return [type(m).__name__ for m in modules if "Norm" in type(m).__name__ and type(m) is not resnet.ConvNorm]

    assert kinds("resnet18-nonorm") == []
    assert kinds("resnet18-gn") == ["GroupNorm"] * 20
    assert kinds("resnet18") == ["BatchNorm"] * 20
    assert kinds("resnet10") == ["BatchNorm"] * 12


def test_pfl_cnn_draws_dropout_from_the_keys():
    model = build_model("pfl-cnn", (1, 8, 8), CLASSES).double()
    batch = Batch(*(part[0] for part in clients((1, 8, 8))[:4]))
    assert torch.equal(model(batch.x, batch), model(batch.x, batch))
    assert not torch.equal(model(batch.x, batch), model(batch.x, batch._replace(key=batch.key + 1)))
    assert not torch.equal(model(batch.x, batch), model(batch.x, batch._replace(key=None)))


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        UserError, match=r'model="resnet-18": unknown model \(did you mean resnet18\?\); the models are .*mlp'
    ):
        build_model("resnet-18", (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("name", "shape", "rule"),
    [
        ("lenet-cnn", (3, 8, 8), "at least 16 pixels"),
        ("vgg11", (3, 64, 64), "at least 1 and at most 32 pixels"),
        ("sl-vit", (3, 30, 32), "multiples of 4"),
        ("digits-cnn", (1, 9, 8), "multiples of 4"),
        ("resnet18", (4, 32, 32), "1 or 3 channels"),
        ("mobilenetv2", (3, 31, 32), "at least 32 pixels"),
        ("fedavg-cnn", (64,), "images"),
    ],
)
def test_unsupported_input_is_refused_in_one_line(name, shape, rule):
    with pytest.raises(UserError, match=rule) as error:
        build_model(name, shape, 10)
    assert f'model="{name}": cannot take input of shape {"x".join(map(str, shape))},' in str(error.value)
    assert "\n" not in str(error.value)
