"""Tasks and models of the user's: they train like ours, and mistakes in them are one line before training."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.metric import MainMetric

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 5))
NUMBERS = X @ DRAW.normal(size=5)
CLASSES = (NUMBERS > 0).astype(int)
MAE = {"mae": lambda outputs, targets: (outputs[:, 0] - targets).abs().mean()}


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


def data(y: np.ndarray = NUMBERS, x: np.ndarray = X) -> ff.Dataset:
    return ff.Dataset.from_arrays(x[:40], y[:40], x[40:], y[40:])


def train(task: object = "auto", y: np.ndarray = NUMBERS, x: np.ndarray = X, out=None, **options) -> ff.Result:
    small = {"model": nn.Linear(5, 1), "rounds": 1, "clients": 4, "cohort": 2, "local_epochs": 2, "partition": "iid"}
    return ff.run(ff.Experiment(dataset=data(y, x), task=task, **(small | options)), out=out)


class Rooted(ff.Task):
    name, metric, higher_is_better, class_scores = "rooted", "rmse", False, False

    def sample_losses(self, outputs, batch):
        return squared(outputs, batch.y)

    def metrics(self, predictions, targets):
        return {"rmse": squared(predictions, targets).mean().sqrt()}


def changed(**attributes: object) -> type[ff.Task]:
    return type("Changed", (Rooted,), attributes)


MISTAKES = {
    "a mean over the batch": (ff.make_task(nn.MSELoss(), MAE), "its loss gives [], must be one number for each sample"),
    "broadcast": (
        ff.make_task(lambda out, y: (out - y).square().mean(-1), MAE),
        "the loss of a sample depends on the other samples of its batch; are outputs [2, 1] and targets [2] broadcast?",
    ),
    "a failing loss": (
        ff.make_task(lambda out, y: out.nothing, MAE),
        "its loss of outputs [2, 1] and targets [2] cannot be computed (AttributeError: ",
    ),
    "if": (
        ff.make_task(lambda out, y: squared(out, y) if y.isnan().any() else squared(out, y) + 1, MAE),
        'so that `if` and .item() cannot look at a tensor; use torch.where, or engine="sequential"',
    ),
    "a vector": (ff.make_task(squared, {"m": squared}), "its metric m is [20], must be one number"),
    "a word": (ff.make_task(squared, {"m": lambda out, y: "good"}), "its metric m is str, must be one number"),
    "a failing metric": (
        ff.make_task(squared, {"m": lambda out, y: out.nothing}),
        "its metrics cannot be computed (AttributeError: ",
    ),
    "a taken name": (ff.make_task(squared, {"loss": squared}), "a metric is called loss"),
    "no dict": (changed(metrics=lambda self, out, y: squared(out, y).mean()), "metrics returns a Tensor, must return"),
    "another main metric": (changed(metric="mse"), "metrics gives rmse, not mse, the main one; write metric = 'rmse'"),
    "classes that are none": (changed(class_scores=True), "a task without classes says class_scores = False"),
    "an object": (Rooted(nn.Linear(5, 1)), "give the class Rooted, not an object of it"),
    "a loss": (nn.MSELoss(), "fedflat.make_task(loss, metrics) makes one"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_task_is_said_before_training(mistake: str, tmp_path):
    task, message = MISTAKES[mistake]
    with pytest.raises(ff.UserError, match=re.escape(message)):
        train(task, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"loss": "mse"}, {"metrics": ["mae"]}, {"metrics": {"mae": "mae"}}])
def test_a_task_is_made_of_functions(wrong: dict):
    with pytest.raises(ff.UserError, match="must be"):
        ff.make_task(**({"loss": squared, "metrics": MAE} | wrong))


def test_a_loss_of_classes_trains_with_methods_that_compare_class_scores():
    options = {"y": CLASSES, "model": nn.Linear(5, 2), "method": ff.FedNTD()}
    accuracy = {"accuracy": lambda out, y: (out.argmax(-1) == y).float().mean()}
    smooth = ff.make_task(
        lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1), accuracy, class_scores=True
    )
    one, many = (train(smooth, engine=engine, **options) for engine in ("sequential", "batched"))
    assert one.history[-1]["loss"] == pytest.approx(many.history[-1]["loss"], rel=1e-5)
    with pytest.raises(ff.UserError, match='method fedntd: task="own": this method compares class scores'):
        train(ff.make_task(squared, MAE), method=ff.FedNTD())


def test_a_metric_that_fails_on_single_clients_ends_no_run():
    def of_both_classes(outputs: Tensor, targets: Tensor) -> float:
        if len(targets.unique()) < 2:
            raise ValueError("only one class")
        return 1.0

    task = ff.make_task(
        lambda out, y: F.cross_entropy(out, y, reduction="none"), {"auc": of_both_classes}, class_scores=True
    )
    clients = {"partition": "shards", "shards": 1, "clients": 2, "cohort": 1, "holdout_clients": 0.5}
    result = train(task, CLASSES, model=nn.Linear(5, 2), **clients)
    assert result.final == 1.0
    assert result.held_out_clients["mean"] == [None]


def test_a_regression_takes_outputs_without_a_last_dimension_and_refuses_more_than_targets():
    flat = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    flat[0].load_state_dict((model := nn.Linear(5, 1)).state_dict())
    assert train(model=flat).history[-1]["mse"] == pytest.approx(train(model=model).history[-1]["mse"])
    with pytest.raises(ff.UserError, match=re.escape("(3 numbers for 1 targets; classes are whole numbers)")):
        train(model=nn.Linear(5, 3))


@pytest.mark.parametrize("probe", ["classes", "class-forgetting", "proximal"])
def test_probes_of_classes_are_refused_before_training(probe: str):
    with pytest.raises(ff.UserError, match="compares classes, which the task regression does not have"):
        train(probes=(probe,))


@pytest.mark.parametrize("method", [ff.MOON(), ff.FedDecorr()], ids=lambda m: type(m).__name__)
def test_methods_of_features_say_that_features_of_tokens_are_no_vectors(method: ff.Method):
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x))

    tokens = DRAW.integers(0, 9, (60, 6))
    with pytest.raises(ff.UserError, match=r"compares one vector of features for each sample, \[B, F\]; the model's"):
        train(y=tokens[:, 1:], x=tokens[:, :-1], model=Language(), method=method)


class Changing(nn.Sequential):
    """A model that is no plain arithmetic in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__(nn.Linear(5, 2))
        self.way = way
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "item":
            x = x / x.abs().max().item()
        if self.way == "numpy":
            x = torch.from_numpy(x.numpy())
        if self.way == "in place":
            self.calls.add_(1)
        return super().forward(x)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("item", r"line \d+ of test_own_tasks.py \(x = .*: it is computed for many clients at once"),
        ("numpy", "a tensor cannot become an array of numpy here"),
        ("in place", "nothing may be changed in place"),
    ],
)
def test_a_model_that_cannot_be_trained_for_many_clients_names_its_line(way: str, message: str):
    with pytest.raises(ff.UserError, match=f"model: .*{message}"):
        train(y=CLASSES, model=Changing(way))


def test_a_model_with_python_numbers_trains_one_client_after_another():
    assert math.isfinite(train(y=CLASSES, model=Changing("item"), engine="sequential").final)


def test_tokens_that_the_model_does_not_take_are_named():
    tokens = DRAW.integers(0, 9, (60, 5))
    with pytest.raises(ff.UserError, match="whole numbers are tokens here, up to 8: give numbers as floats"):
        train(y=CLASSES, x=tokens, model="auto")
    tokens[17, 2] = 12  # neither the first sample nor the last
    embedding = nn.Sequential(nn.Embedding(12, 2), nn.Flatten(), nn.Linear(10, 2))
    with pytest.raises(ff.UserError, match=r"index out of range in self.*up to 12"):
        train(y=CLASSES, x=tokens, model=embedding)


def test_attention_with_dropout_is_named():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(5, 1, 0.1, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, None]
            return self.head(self.attend(x, x, x)[0][:, 0])

    with pytest.raises(ff.UserError, match=r"layer 'attend' \(MultiheadAttention\) draws .*; set its dropout to 0"):
        train(y=CLASSES, model=Attention())


def test_the_main_metric_is_the_tasks():
    assert Rooted.main_metric() == MainMetric("rmse", higher_is_better=False)
    result = train(Rooted, seeds=(0, 1))
    assert (result.metric, result.higher_is_better) == ("rmse", False)
