"""Tasks other than classification, integer and several inputs: losses and metrics by hand, and engines that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch, Task
from fedflat.core.tasks import IGNORED, TASKS, make_task
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Dataset
from fedflat.engine import ENGINES
from fedflat.engine.rounds import Trial, evaluate, play_round
from fedflat.models.adapt import adapt_layers
from fedflat.models.lora import lora

SIZES = (5, 3, 9, 4)


class TokenModel(nn.Module):
    """Embedding, one mixing layer and a head: tokens [B, T], and optionally their mask, to scores [B, T, 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q_proj, self.v_proj = nn.Embedding(600, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        x = x if attention_mask is None else x * attention_mask[..., None].to(x.dtype)
        return self.head(torch.tanh(self.q_proj(x)) * self.v_proj(x).cumsum(1))


def with_batch_norm() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return adapt_layers(net)[0]


def problem(name: str) -> tuple[type[Task], nn.Module, Dataset]:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    x, n = rng.normal(size=(sum(SIZES), 4)), sum(SIZES)
    ids, labels = rng.integers(0, 600, (n, 5)), rng.integers(0, 3, n)
    next_ids = np.where(rng.random((n, 5)) < 0.2, IGNORED, rng.integers(0, 12, (n, 5)))
    problems: dict[str, tuple[type[Task], nn.Module, Any, Any]] = {
        "regression": (TASKS["regression"], nn.Linear(4, 1), x, x @ rng.normal(size=4)),
        "multilabel": (TASKS["multilabel"], nn.Linear(4, 3), x, rng.integers(0, 2, (n, 3))),
        "next-token": (TASKS["next-token"], TokenModel(), ids, next_ids),
        "lora": (TASKS["next-token"], lora(TokenModel(), rank=2), ids, next_ids),
        "several inputs": (TASKS["next-token"], TokenModel(), {"ids": ids, "attention_mask": ids % 2}, next_ids),
        "batch norm": (Task, with_batch_norm(), x, labels),
    }
    task, model, samples, y = problems[name]
    data = Dataset.from_arrays(samples, y, samples, y, classes=None if y.ndim == 1 else 600)
    return task, model.double(), data


PROBLEMS = ("regression", "multilabel", "next-token", "lora", "several inputs", "batch norm")


def train(engine: str, name: str, method: ff.Method) -> Tensor:
    kind, model, data = problem(name)
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    source = ClientBatches(data, parts, 4, 2, dtype=torch.float64)
    task = kind(model)
    w = task.flatten(dict(model.named_parameters())).detach()
    optimiser = Optimiser(torch.tensor(0.05, dtype=torch.float64), 0.5, 1e-3)
    trials = [Trial(0, method, w, optimiser=optimiser)]
    runner = ENGINES[engine](method, task, source)
    for round, cohort in enumerate(([0, 2], [1, 3, 2])):
        weights = [source.sizes[cohort].double()]
        play_round(method, runner, trials, round, [cohort], weights, 4, optimiser)
    return trials[0].server.params


@pytest.mark.parametrize("method", [ff.FedAvg(), ff.FedSAM(rho=0.1), ff.SCAFFOLD()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("name", PROBLEMS)
def test_engines_agree(name: str, method: ff.Method):
    one, many = (train(engine, name, method) for engine in ("sequential", "batched"))
    assert torch.isfinite(one).all()
    assert torch.allclose(one, many, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["fedntd", "fedsol", "fedgmt"])
def test_methods_that_need_class_scores_are_refused(name: str):
    options = {"perturb": "all"} if name == "fedsol" else {}
    with pytest.raises(ff.UserError, match='task="regression": this method compares class scores'):
        train("batched", "regression", ff.METHODS[name](**options))


def test_tokens_stay_whole_numbers_in_16_bits():
    kind, model, data = problem("next-token")
    task, source = kind(model.float(), torch.bfloat16), ClientBatches(data, [np.arange(21)], 4, 1)
    seen: list[Tensor] = []
    model.embed.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    task.outputs(task.flatten(dict(model.named_parameters())).detach(), source.samples(torch.arange(21)))
    assert torch.equal(seen[0], data.x)


def measured(name: str, outputs: Tensor, y: Tensor) -> tuple[float, dict[str, float]]:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zero = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.zero

    data = Batch(outputs, y, torch.ones(len(y), dtype=torch.bool), None)
    loss, metrics = evaluate(TASKS[name](Given()), torch.zeros(1, dtype=torch.float64), data, 3, every_metric=True)
    return loss, metrics


def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    out, y = rng.normal(size=(10, 3)), rng.integers(0, 2, (10, 3))
    loss, metrics = measured("multilabel", torch.tensor(out), torch.tensor(y))
    assert loss == pytest.approx(float(F.binary_cross_entropy_with_logits(torch.tensor(out), torch.tensor(y).double())))
    expected = {"f1": f1_score(y, out > 0, average="macro"), "auroc": roc_auc_score(y, out, average="macro")}
    assert metrics == pytest.approx(expected)
    y[:, 1] = 1  # auroc is not defined for a label that is always true
    _, metrics = measured("multilabel", torch.tensor(out), torch.tensor(y))
    assert metrics["auroc"] == pytest.approx(roc_auc_score(y[:, [0, 2]], out[:, [0, 2]], average="macro"))
    numbers = rng.normal(size=10)
    loss, metrics = measured("regression", torch.tensor(out[:, :1]), torch.tensor(numbers))
    error = out[:, 0] - numbers
    expected = {"mse": (error**2).mean(), "mae": abs(error).mean(), "r2": r2_score(numbers, out[:, 0])}
    assert metrics == pytest.approx(expected)
    assert loss == pytest.approx((error**2).mean())
    labels = rng.integers(0, 3, 10)
    _, metrics = measured("classification", torch.tensor(out), torch.tensor(labels))
    assert metrics["macro_f1"] == pytest.approx(f1_score(labels, out.argmax(1), average="macro"))
    assert metrics["accuracy"] == (out.argmax(1) == labels).mean()


def test_perplexity_counts_tokens_and_not_texts():
    out = torch.randn(4, 5, 7, dtype=torch.float64)
    y = torch.randint(0, 7, (4, 5))
    y[0, 1:] = IGNORED
    loss, metrics = measured("next-token", out, y)
    mean = float(F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=IGNORED))
    assert loss == pytest.approx(mean)
    assert metrics["perplexity"] == pytest.approx(np.exp(mean))
    assert metrics["accuracy"] == pytest.approx(float((out.argmax(-1) == y)[y != IGNORED].double().mean()))
    of_text = TASKS["next-token"](nn.Linear(1, 1)).sample_losses(out, Batch(out, y, torch.ones(4).bool(), None))
    assert float(of_text[0]) == pytest.approx(float(F.cross_entropy(out[0, 0], y[0, 0])))
    assert float(of_text[1]) == pytest.approx(float(F.cross_entropy(out[1], y[1])))


def test_a_task_made_of_functions():
    huber = make_task(
        loss=lambda out, y: F.huber_loss(out[:, 0], y, reduction="none"),
        metrics={"mae": lambda out, y: (out[:, 0] - y).abs().mean()},
        higher_is_better=False,
    )
    task = huber(nn.Linear(2, 1))
    x, y = torch.randn(6, 2), torch.randn(6)
    data, w = Batch(x, y, torch.ones(6, dtype=torch.bool), None), torch.zeros(3)
    assert float(task.loss(w, data)) == pytest.approx(float(F.huber_loss(torch.zeros(6), y)))
    assert evaluate(task, w, data).metrics == {"mae": pytest.approx(float(y.abs().mean()))}
    assert (task.metric, task.higher_is_better, task.class_scores) == ("mae", False, False)
    with pytest.raises(ff.UserError, match="give at least one metric"):
        make_task(loss=lambda out, y: y, metrics={})
