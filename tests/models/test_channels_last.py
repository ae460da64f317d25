"""Images whose channels are last in memory: the same model, trained faster on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.layout import AnyLayout
from fedflat.runs.build import build_run

TINY = ff.Experiment(dataset="digits", rounds=2, clients=4, cohort=2, local_epochs=1, partition="iid")


def net(flatten: nn.Module) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 40, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),  # too large for a matrix of patches
        *(nn.Conv2d(40, 8, 3, padding=1), nn.ReLU(), flatten, nn.Linear(128, 10)),
    )


class View(nn.Module):
    """What many write to flatten images; torch refuses it if the channels are last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1).view_as(x.new_empty(len(x), 128))


def flat() -> nn.Module:
    return net(nn.Flatten())


def viewed() -> nn.Module:
    return net(View())


def test_large_models_that_normalise_keep_the_usual_order(monkeypatch):
    orders = []
    for largest in (10**8, 1000):
        monkeypatch.setattr("fedflat.runs.build.LARGE_MODEL", largest)
        orders.append([build_run(replace(TINY, model=model)).task.channels_last for model in ("mlp", "resnet10")])
    assert orders == [[True, True], [True, False]]


@pytest.mark.parametrize(
    "model", ["fedavg-cnn", "lenet-cnn", "digits-cnn", "vgg11", "resnet10", "resnet18-gn", "sl-vit", "mobilenetv2"]
)
def test_every_layer_computes_the_same(model, monkeypatch):
    shape = (1, 8, 8) if model == "digits-cnn" else (3, 32, 32)
    x, y = torch.randn(12, *shape), torch.arange(12) % 3
    experiment = replace(TINY, dataset=ff.Dataset.from_arrays(x, y, x[:6], y[:6]), model=model, batch_size=4)
    monkeypatch.setattr("fedflat.runs.build.LARGE_MODEL", 10**8)
    built = build_run(experiment)
    usual = built.task.with_model(built.task.model)
    usual.channels_last = False
    w, batch = built.initial_params[0].double(), built.client_data.samples(torch.arange(6))
    batch = batch._replace(x=batch.x.double())
    assert built.task.channels_last
    torch.testing.assert_close(built.task.outputs(w, batch), usual.outputs(w, batch), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(built.task.grad(w, batch), usual.grad(w, batch), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_models_may_flatten_images_with_view(engine):
    results = [ff.run(replace(TINY, model=model, engine=engine)) for model in (flat, viewed)]
    losses = [[row["loss"] for row in result.history] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_only_views_of_another_shape_are_changed():
    with AnyLayout():
        assert torch.ones(2).view(torch.int32).dtype == torch.int32
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        View()(torch.zeros(2, 4, 4, 8).movedim(-1, 1))


def pooled_to_one_pixel() -> nn.Module:
    layers = (nn.Conv2d(1, 40, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10))
    return nn.Sequential(*layers)


def test_the_mean_over_pixels_is_taken_for_all_clients_at_once(recwarn):
    torch.set_warn_always(True)
    try:
        ff.run(replace(TINY, model=pooled_to_one_pixel, engine="batched", batch_size=16))
    finally:
        torch.set_warn_always(False)
    assert not [w for w in recwarn if "performance drop" in str(w.message)]


def test_filters_that_outweigh_the_images_are_not_turned_around(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t: seen.append(t.shape) or t.clone())
    x = torch.randn(2, 4, 4, 8).movedim(-1, 1)
    with AnyLayout():
        for outputs in (2, 40):  # 144 and 2,880 numbers beside 256
            nn.functional.conv2d(x, torch.randn(outputs, 8, 3, 3))
    assert seen == [x.shape]
