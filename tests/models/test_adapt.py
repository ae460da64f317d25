"""Models as users have them: torch's BatchNorm and dropout, frozen parameters, given weights, LoRA."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedflat as ff
from fedflat.core.task import Batch, Task
from fedflat.models.adapt import adapt_layers, load_weights
from fedflat.models.lora import lora


def batch(samples: int, padding: int = 0, key: bool = False) -> Batch:
    x = torch.randn(samples + padding, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(samples + padding) < samples
    return Batch(x, torch.zeros(len(x), dtype=torch.int64), mask, torch.arange(len(x)) if key else None)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    ).double()


def flat(task: Task) -> torch.Tensor:
    return task.flatten(dict(task.model.named_parameters())).detach()


def test_batch_norm_is_torchs_on_the_real_samples():
    model = convolutional()
    nn.init.normal_(model[1].weight)
    task = Task(adapt_layers(model)[0])
    data = batch(5, padding=3)
    assert torch.allclose(task.outputs(flat(task), data)[:5], model.train()(data.x[:5]), atol=1e-12)


def test_what_is_replaced_is_said_and_the_model_stays():
    model = nn.Sequential(convolutional(), nn.Dropout(0.5), nn.Dropout2d(0.1))
    adapted, words = adapt_layers(model)
    assert words == "1 nn.Dropout, 1 nn.Dropout2d, 1 nn.BatchNorm2d"
    assert type(model[1]) is nn.Dropout
    assert list(dict(adapted.named_parameters())) == list(dict(model.named_parameters()))


def test_dropout_depends_on_the_samples_keys_alone():
    task = Task(adapt_layers(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout2d(0.5), nn.Flatten(2)).double())[0])
    data = batch(6, key=True)
    out = task.outputs(flat(task), data)
    alone = task.outputs(flat(task), Batch(data.x[3:4], data.y[3:4], data.mask[3:4], data.key[3:4]))
    assert torch.equal(out[3:4], alone)
    dropped = (out == 0).all(-1)  # whole channels
    assert torch.equal(dropped, (out == 0).any(-1))
    assert 0.2 < dropped.double().mean() < 0.8
    assert not (task.outputs(flat(task), data._replace(key=None)) == 0).any()


def test_two_dropout_layers_draw_different_masks():
    """Otherwise the second would drop what the first has dropped already."""
    task = Task(adapt_layers(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout(0.5), nn.Dropout(0.5)).double())[0])
    dropped = (task.outputs(flat(task), batch(6, key=True)) == 0).double().mean()
    assert 0.7 < dropped < 0.8  # three in four


def test_frozen_parameters_are_not_in_w_and_stay():
    model = convolutional()
    model[0].requires_grad_(False)
    task = Task(adapt_layers(model)[0])
    assert task.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert list(task.frozen) == ["0.weight", "0.bias"]
    full, data = Task(adapt_layers(convolutional())[0]), batch(5)
    w = flat(full)
    trained = w[-task.size :]
    assert torch.allclose(task.outputs(trained, data), full.outputs(w, data), atol=1e-12)
    assert torch.allclose(task.grad(trained, data), full.grad(w, data)[-task.size :], atol=1e-12)


def test_lora_starts_as_the_model_and_trains_its_matrices_only():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    adapted = lora(model, rank=2, target=("0",), train=("2.bias",))
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(adapted(x), model(x))
    assert [n for n, p in adapted.named_parameters() if p.requires_grad] == ["0.lora_a", "0.lora_b", "2.bias"]
    with torch.no_grad():
        adapted[0].lora_b.normal_()
    weight = model[0].weight + 2.0 * adapted[0].lora_b @ adapted[0].lora_a
    assert torch.allclose(adapted[0](x), x @ weight.T + model[0].bias, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ("query",)}, "target=.*query.*: no linear layer has this name; the model has 0, 2"),
        ({"target": ("0",), "rank": 0}, "rank=0: must be at least 1"),
        ({"target": ("0",), "train": ("head",)}, 'train="head": no parameter'),
    ],
)
def test_lora_names_what_it_cannot_use(options, message):
    with pytest.raises(ff.UserError, match=message):
        lora(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), **options)


def test_given_weights(tmp_path):
    model, other = convolutional(), convolutional()
    nn.init.normal_(other[0].weight)
    save_file(other.state_dict(), tmp_path / "w.safetensors")  # with running statistics, which are not used
    adapted = adapt_layers(model)[0]
    load_weights(adapted, tmp_path / "w.safetensors")
    assert torch.equal(adapted[0].weight, other[0].weight)
    named = {name: t for name, t in other.state_dict().items() if "running" not in name and "num" not in name}
    for change, message in (
        ({"0.weight": torch.zeros(2)}, r"'0.weight' has shape \[2\], the model's is \[4, 3, 3, 3\]"),
        ({"extra": torch.zeros(2)}, "has 'extra', which the model does not have"),
        ({"4.bias": None}, "has no '4.bias', which the model has"),
    ):
        save_file({k: v for k, v in (named | change).items() if v is not None}, tmp_path / "bad.safetensors")
        with pytest.raises(ff.UserError, match=message):
            load_weights(adapted, tmp_path / "bad.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"12")
    with pytest.raises(ff.UserError, match="cannot be read as a safetensors file"):
        load_weights(adapted, tmp_path / "torn.safetensors")


def test_layers_and_weights_that_are_used_twice_train_in_every_engine():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Linear(64, 8, bias=False), nn.Linear(64, 8, bias=False)
            self.again.weight = self.first.weight
            self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return self.last(self.middle(self.middle(self.first(x)).relu() + self.again(x)))

    model = Twice()
    tiny = {"model": model, "rounds": 2, "clients": 4, "cohort": 2, "local_epochs": 1}
    results = [ff.run(ff.Experiment(engine=engine, **tiny)) for engine in ("sequential", "batched")]
    losses = [result.history[-1]["loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert results[0].parameters == 64 * 8 + 8 * 8 + 8 + 8 * 10 + 10
    task = ff.Task(model)
    trained = task.module(torch.ones(task.size))
    assert trained.again.weight is trained.first.weight
    assert {name for name, _ in model.named_parameters()} == set(task.shapes)
    x = torch.randn(3, 64)
    three = Batch(x, torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), None)
    assert torch.allclose(task.outputs(torch.ones(task.size), three), trained(x))


def test_compiled_models_train_as_they_were_and_lazy_ones_are_refused():
    model = nn.Linear(64, 10)
    adapted, _ = adapt_layers(torch.compile(model))
    assert [name for name, _ in adapted.named_parameters()] == ["weight", "bias"]
    with pytest.raises(ff.UserError, match="call it once with a sample before"):
        adapt_layers(nn.LazyLinear(10))
