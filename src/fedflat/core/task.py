"""A task: a model, its loss and its metrics as functions of one flat parameter vector. `Task` is classification."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from fedflat.core.batch import Batch
from fedflat.core.functional_model import FunctionalModel, Parameters
from fedflat.core.gradient import grad
from fedflat.core.metric import MainMetric
from fedflat.core.norm_statistics import NormStatistics
from fedflat.errors import UserError

__all__ = ["Batch", "Task"]  # who needs a task needs its batches


class Task(FunctionalModel):
    """What is learned: a model whose trained parameters are one flat vector w, [P], a loss and metrics.

    `Task` itself is classification: cross entropy and accuracy. A subclass overrides `sample_losses` and `metrics`, and
    says what its main metric is; core.tasks has multilabel, regression and next-token. The model's side is
    FunctionalModel's: `outputs(w, batch)`, `unflatten(w)`, `shapes`, `size` and more.

    Args:
        model, compute: the model and the dtype in which it computes, as in FunctionalModel.
    """

    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"  # the main one: it is shown, compared and used to choose between runs
    higher_is_better: ClassVar[bool] = True  # whether a larger main metric is better
    class_scores: ClassVar[bool] = True  # whether outputs are scores of classes, and targets are classes

    @classmethod
    def main_metric(cls) -> MainMetric:
        """Return the name and the direction of the main metric."""
        return MainMetric(cls.metric, cls.higher_is_better)

    def logits(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the class scores [B, classes] of the model w: its outputs, where the task has classes.

        Args:
            w: the model, [P] or by name.
            batch: the samples.

        Raises:
            UserError: the task has no classes.
        """
        if not self.class_scores:
            raise UserError("task", self.name, "this method compares class scores, which the task does not have")
        return self.outputs(w, batch)

    def mean(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the mean of per-sample values over the samples that are not padding, 0 if all are.

        Args:
            values: one number for each sample, [B].
            batch: the samples.
        """
        return (values * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    def sample_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each sample, [B]; here −log softmax(outputs)[y].

        Args:
            outputs: class scores, [B, classes].
            batch: the samples, of which the targets are used.
        """
        true_class = outputs.gather(-1, batch.y[:, None])[:, 0]
        return outputs.logsumexp(-1) - true_class

    def output_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of outputs, a scalar: the mean of `sample_losses` over the samples that are not padding.

        Args:
            outputs: what the model gave, [B, ...].
            batch: the samples, of which the targets and the mask are used.
        """
        return self.mean(self.sample_losses(outputs, batch), batch)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the loss f(w), a scalar.

        Args:
            w: the model, [P].
            batch: the samples.
        """
        return self.output_loss(self.outputs(w, batch), batch)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the gradient ∇f(w) of `loss`, [P].

        Args:
            w: the model, [P].
            batch: the samples.
        """
        return grad(lambda v: self.loss(v, batch))(w)

    def grad_and_statistics(self, w: Tensor, batch: Batch, statistics: NormStatistics) -> tuple[Tensor, NormStatistics]:
        """Return the gradient ∇f(w), [P], and the running averages after this batch, from one forward pass.

        Args:
            w: the model, [P].
            batch: the samples.
            statistics: the running averages before.
        """

        def loss(v: Tensor) -> tuple[Tensor, NormStatistics]:
            recorder = self._recorder(statistics)
            return recorder.loss(v, batch), recorder._next_statistics()

        return grad(loss, has_aux=True)(w)

    def weight(self, batch: Batch) -> Tensor:
        """Return over how many things `output_loss` is the mean, a scalar: the samples that are not padding.

        Args:
            batch: the samples.
        """
        return batch.mask.sum()

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return what `metrics` needs of a batch's outputs, [B, ...]; here the outputs themselves.

        Args:
            outputs: what the model gave, [B, ...].
            batch: the samples.
        """
        return outputs

    def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Return the metrics of all samples of a test set by name; the main one is among them.

        Args:
            predictions: what `predictions` returned, of all samples, [n, ...].
            targets: their targets, [n, ...].
        """
        return {"accuracy": int((predictions.argmax(-1) == targets).sum()) / len(targets)}

    def all_metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Return all metrics of a finished model; here macro_f1, balanced_accuracy and each class's recall as well.

        Args:
            predictions: as in `metrics`.
            targets: as in `metrics`.
        """
        if not self.class_scores:
            return self.metrics(predictions, targets)
        from sklearn.metrics import f1_score, recall_score

        truth, found = targets.cpu().numpy(), predictions.argmax(-1).cpu().numpy()
        recall = recall_score(truth, found, average=None, labels=np.unique(truth), zero_division=0.0)
        per_class = {f"recall_class_{c}": float(r) for c, r in zip(np.unique(truth), recall, strict=True)}
        macro_f1 = float(f1_score(truth, found, average="macro", zero_division=0.0))
        more = {"macro_f1": macro_f1, "balanced_accuracy": float(recall.mean())}
        return self.metrics(predictions, targets) | more | per_class
