"""The tasks by name: classification (`Task` itself), multilabel, regression, next-token; and tasks made of functions.

Metrics that need more than a line come from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedflat.core.task import Batch, Task
from fedflat.errors import NOT_SHOWN, UserError, near_miss
from fedflat.own_code import is_own_code, load_own_code

IGNORED = -100  # a target that counts neither in the loss nor in a metric, as elsewhere in PyTorch


class Multilabel(Task):
    """Several labels may be true at once: targets [B, labels] are 0 or 1, outputs [B, labels] are their scores.

    The loss is the binary cross entropy, averaged over labels. A label is predicted where its score is above 0. `f1` is
    the macro average over labels; `auroc` leaves out labels that are always or never true.
    """

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "f1"
    class_scores: ClassVar[bool] = False

    def sample_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the binary cross entropy of each sample, [B]."""
        losses = F.binary_cross_entropy_with_logits(outputs, batch.y.to(outputs.dtype), reduction="none")
        return losses.mean(-1)

    def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Return f1 and auroc, macro averages over labels."""
        from sklearn.metrics import f1_score, roc_auc_score

        scores, truth = predictions.cpu().double().numpy(), targets.cpu().numpy()
        f1 = f1_score(truth, scores > 0, average="macro", zero_division=0.0)
        mixed = (truth.min(0) == 0) & (truth.max(0) == 1)
        auroc = roc_auc_score(truth[:, mixed], scores[:, mixed], average="macro") if mixed.any() else float("nan")
        return {"f1": float(f1), "auroc": float(auroc)}


class Regression(Task):
    """Targets are numbers, [B] or [B, numbers]; the model's outputs are [B, 1] or [B, numbers].

    The loss is the squared error, averaged over a sample's numbers. r2 is 1 − Σ (y − ŷ)² / Σ (y − ȳ)².
    """

    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool] = False
    class_scores: ClassVar[bool] = False

    def sample_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error of each sample, [B]."""
        numbers, targets = (t.reshape(len(batch.y), -1) for t in (outputs, batch.y))
        if numbers.shape != targets.shape:  # they would be broadcast
            raise ValueError(f"{numbers.shape[1]} numbers for {targets.shape[1]} targets; classes are whole numbers")
        return (numbers - targets).square().mean(-1)

    def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Return mse, mae and r2; the latter is averaged over numbers."""
        truth = targets.cpu().double().reshape(len(targets), -1)
        error = predictions.cpu().double().reshape(truth.shape) - truth
        spread = (truth - truth.mean(0)).square().sum(0)
        r2 = 1 - error.square().sum(0) / spread
        return {"mse": error.square().mean(), "mae": error.abs().mean(), "r2": r2.mean()}


class NextToken(Task):
    """Language models: outputs [B, T, tokens] are scores of the next token at each of T positions, targets are [B, T].

    Positions with target −100 (padding) do not count. The loss is the mean cross entropy over all other positions of
    the batch; perplexity is its exponential.
    """

    name: ClassVar[str] = "next-token"
    metric: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False
    class_scores: ClassVar[bool] = False

    def sample_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy over the positions of each sample that count, [B]."""
        losses, counts = self._token_losses(outputs, batch.y), batch.y != IGNORED
        return losses.sum(-1) / counts.sum(-1).clamp(min=1)

    def output_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy over all positions that count, a scalar."""
        losses = self._token_losses(outputs, batch.y) * batch.mask[:, None]
        return losses.sum() / self.weight(batch).clamp(min=1)

    def weight(self, batch: Batch) -> Tensor:
        """Return the number of positions that count, a scalar."""
        return ((batch.y != IGNORED) & batch.mask[:, None]).sum()

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross entropy and whether the prediction is right at each position, [B, T, 2]."""
        right = (outputs.argmax(-1) == batch.y).to(outputs.dtype)
        return torch.stack([self._token_losses(outputs, batch.y), right], -1)

    def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Return perplexity and accuracy over all positions that count."""
        counts = targets != IGNORED
        loss, right = predictions[counts].cpu().double().mean(0)
        return {"perplexity": loss.exp(), "accuracy": right}

    def _token_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return −log softmax(outputs)[y] at each position, [B, T], 0 where the target is ignored."""
        counts = y != IGNORED
        true_token = outputs.gather(-1, y.clamp(min=0)[..., None])[..., 0]
        return torch.where(counts, outputs.logsumexp(-1) - true_token, 0)


TASKS: dict[str, type[Task]] = {task.name: task for task in (Task, Multilabel, Regression, NextToken)}

Function = Callable[[Tensor, Tensor], Any]  # of outputs [n, ...] and targets [n, ...]


def make_task(
    loss: Function,
    metrics: Mapping[str, Function],
    higher_is_better: bool = True,
    name: str = "own",
    class_scores: bool = False,
) -> type[Task]:
    """Return a task made of functions. The first metric is the main one.

        huber = ff.make_task(loss=lambda out, y: F.huber_loss(out[:, 0], y, reduction="none"),
                             metrics={"mae": lambda out, y: (out[:, 0] - y).abs().mean()}, higher_is_better=False)

    Args:
        loss: maps outputs [B, ...] and targets [B, ...] to the loss of each sample, [B].
        metrics: each maps the outputs and targets of the whole test set to one number.
        higher_is_better: whether a larger main metric is better.
        name: what the run folder calls the task.
        class_scores: whether outputs are scores of classes, [B, classes], and targets are classes. Methods such as
            FedSOL and FedNTD need them.

    Raises:
        UserError: the loss or a metric is not a function, or there is no metric.
    """
    if not callable(loss):
        raise UserError("loss", loss, "must be a function of outputs and targets")
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise UserError("metrics", metrics, 'must be functions by name, such as {"mae": lambda outputs, targets: …}')
    if not metrics:
        raise UserError("metrics", dict(metrics), "give at least one metric; the first is the main one")

    class OwnTask(Task):
        def sample_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
            return loss(outputs, batch.y)

        def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
            return {key: function(predictions, targets) for key, function in metrics.items()}

    OwnTask.name, OwnTask.metric, OwnTask.higher_is_better = name, next(iter(metrics)), higher_is_better
    OwnTask.class_scores = class_scores
    return OwnTask


def find_task(task: Any) -> type[Task]:
    """Return the class of a task from its name, or the class itself; raise UserError if it is neither.

    Args:
        task: such as "regression", a subclass of `Task`, or FILE.py:CLASS.
    """
    task = load_own_code("task", task) if is_own_code(task) else task
    if isinstance(task, type) and issubclass(task, Task):
        return task
    if isinstance(task, Task):
        raise UserError("task", NOT_SHOWN, f"give the class {type(task).__name__}, not an object of it")
    if callable(task):
        allowed = "must be a name or a subclass of fedflat.Task; fedflat.make_task(loss, metrics) makes one"
        raise UserError("task", task, allowed)
    if not isinstance(task, str) or task not in TASKS:
        names = ["auto", *TASKS]
        allowed = f"must be one of {', '.join(names)}, or a fedflat.Task of your own, FILE.py:CLASS"
        raise UserError("task", task, f"{allowed}{near_miss(str(task), names)}")
    return TASKS[task]
