"""A task: a model, its loss and its metrics as functions of one flat parameter vector. `Task` is classification.

Where the model computes in float16, gradients inside it are scaled up by GRADIENT_SCALE, because small ones would be
rounded to 0 there, and scaled down again where they leave it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedflat.core.gradient import grad
from fedflat.core.layout import AnyLayout, depends_on_layout, put_channels_last
from fedflat.core.metric import MainMetric
from fedflat.core.model_check import check_model
from fedflat.core.norm_statistics import (
    LayerStatistics,
    NormStatistics,
    StatisticsUse,
    join_statistics,
    named_buffers,
    split_statistics,
    tracking_layers,
    using_statistics,
)
from fedflat.errors import NOT_SHOWN, UserError

GRADIENT_SCALE = 256.0  # float16 then holds gradients between 2⁻²⁴/256 and 65504/256


class _ScaleGrad(torch.autograd.Function):
    """The identity; its backward pass multiplies the gradient by a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


Samples = Tensor | tuple[Tensor, ...] | dict[str, Tensor]  # the inputs of a model: one tensor, or several


class Batch(NamedTuple):
    """The samples of one local step. B counts padding too: batches are padded so that many clients' have one shape.

    Args:
        x: inputs, [B, channels, height, width] for images, [B, length] for tokens. Several inputs are a tuple, given to
            the model in order, or a dict, given by name.
        y: targets, [B] or [B, ...]: labels, numbers, tokens, as the task wants them.
        mask: bool [B], False for padding, which no loss and no statistic may depend on.
        key: int64 [B], a hash for every sample from which dropout is drawn; None at evaluation.
        step: the number j of steps that the client took before in this round, a scalar tensor; () outside training.
        steps: the number K of its steps in this round, a scalar tensor; () outside training.
    """

    x: Samples
    y: Tensor
    mask: Tensor
    key: Tensor | None
    step: Tensor = ()  # type: ignore[assignment]
    steps: Tensor = ()  # type: ignore[assignment]


def map_batch(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply a function to every tensor of a batch.

    Args:
        function: such as `lambda t: torch.stack([t, t])`.
        batch: the batch.
    """
    others: Any = (function(t) if isinstance(t, Tensor) else t for t in batch[1:])
    return Batch(map_samples(function, batch.x), *others)


def map_samples(function: Callable[..., Tensor], x: Samples, *others: Any) -> Samples:
    """Apply a function to each tensor of the inputs, together with the tensors of further inputs built alike.

    Args:
        function: such as `lambda t: t[rows]`.
        x: one tensor, a tuple or a dict.
        others: further inputs of the same structure.
    """
    if isinstance(x, Tensor):
        return function(x, *others)
    if isinstance(x, dict):
        return {name: function(t, *(other[name] for other in others)) for name, t in x.items()}
    return tuple(function(*each) for each in zip(x, *others, strict=True))


def select_samples(data: Batch, rows: Any) -> Batch:
    """Return some samples of a batch.

    Args:
        data: the batch.
        rows: a slice, row numbers or a bool mask.
    """
    key = None if data.key is None else data.key[rows]
    return Batch(map_samples(lambda t: t[rows], data.x), data.y[rows], data.mask[rows], key)


def split_batch(data: Batch, size: int) -> Iterator[Batch]:
    """Cut a batch into pieces of at most `size` samples, in order."""
    return (select_samples(data, slice(start, start + size)) for start in range(0, len(data.y), size))


def join_batches(first: Batch, second: Batch) -> Batch:
    """Return the samples of both batches in one, without their keys."""
    x = map_samples(lambda a, b: torch.cat([a, b]), first.x, second.x)
    return Batch(x, torch.cat([first.y, second.y]), torch.cat([first.mask, second.mask]), None)


_current_batch: list[Batch] = []  # the batch of the call under way, if there is one


def current_batch() -> Batch:
    """Return the batch with which a task calls its model at this moment; layers use its mask and its keys."""
    assert _current_batch, "this layer works only inside a model that a Task calls"
    return _current_batch[-1]


Parameters = Tensor | Mapping[str, Tensor]  # a model: one vector [P], or tensors by name as `Task.unflatten` gives


class _Parts(nn.Module):
    """A module through which functional_call can call one part of a model: "all", "features" or "head"."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: str, *inputs: Any, **named: Any) -> Any:
        target = self.model if part == "all" else getattr(self.model, part)
        return target(*inputs, **named)


def tied_parameters(model: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that several modules share, and the first name of each.

    A module that is used in several places has its parameters once. torch ties both kinds by name, and then leaves
    a module that is used twice without its parameters (functional_call with tie_weights).

    Args:
        model: any model.
    """
    first: dict[nn.Parameter, str] = {}
    tied = {}
    for prefix, module in model.named_modules():
        for own, parameter in module.named_parameters(prefix, recurse=False):
            if first.setdefault(parameter, own) != own:
                tied[own] = first[parameter]
    return tied


class Task:
    """What is learned: a model whose trained parameters are one flat vector w, [P], a loss and metrics.

    `Task` itself is classification: cross entropy and accuracy. A subclass overrides `sample_losses` and `metrics`, and
    says what its main metric is; core.tasks has multilabel, regression and next-token.

    All functions are pure and run under torch.func.vmap, so that the same code trains one client or many at once.

    `shapes` has the trained parameters' shapes by name, in the order in which w holds them; `size` is P. Parameters
    with requires_grad=False are not part of w: all clients share one copy, `frozen`, which is never sent. `has_head`
    tells whether the model has the parts `features` and `head`, which `features` and `head` below need. `norm_layers`
    are the layers that keep running averages; without `with_statistics` they normalise by each batch's own moments.

    Args:
        model: gives outputs [B, ...] for inputs. A model with the attribute `takes_batch = True` is called as
            model(x, batch), any other as model(x). The values of its trained parameters are not used.
        compute: the dtype in which the model computes (float16, bfloat16); that of w unless given. Outputs are float32
            and gradients have w's dtype in any case.

    Raises:
        UserError: the model cannot be trained as a function of w, see `check_model`.
    """

    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"  # the main one: it is shown, compared and used to choose between runs
    higher_is_better: ClassVar[bool] = True  # whether a larger main metric is better
    class_scores: ClassVar[bool] = True  # whether outputs are scores of classes, and targets are classes

    def __init__(self, model: nn.Module, compute: torch.dtype | None = None) -> None:
        check_model(model)
        self.model, self.compute = model, compute
        self._parts = _Parts(model)
        self._takes_batch = getattr(model, "takes_batch", False)
        self.has_head = hasattr(model, "features") and hasattr(model, "head")
        self.shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.size = sum(self.sizes)
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self._frozen = {f"model.{name}": self._to_compute(p) for name, p in self.frozen.items()}
        self._tied = tied_parameters(self._parts)
        self.norm_layers = tracking_layers(model)
        self._channels = [len(layer.averages()[0]) for layer in self.norm_layers.values()]
        self.channels_last, self._any_layout = False, AnyLayout if depends_on_layout(model) else nullcontext
        self.statistics: NormStatistics | None = None
        self._updated: dict[nn.Module, LayerStatistics] | None = None

    @classmethod
    def main_metric(cls) -> MainMetric:
        """Return the name and the direction of the main metric."""
        return MainMetric(cls.metric, cls.higher_is_better)

    def with_model(self, model: nn.Module, compute: torch.dtype | None = None) -> Task:
        """Return the same task with another form of its model.

        Args:
            model: a model with the same parameters.
            compute: as in the constructor.
        """
        other = type(self)(model, compute)
        return other.with_channels_last() if self.channels_last else other

    def with_channels_last(self) -> Task:
        """Return the same task, which gives images to its model with the channels last in memory.

        Shapes stay as they are. On a CPU convolutions are then a little faster and max-pooling is many times as fast.
        """
        other = copy.copy(self)
        other.channels_last, other._any_layout = True, AnyLayout
        return other

    def initial_statistics(self, like: Tensor) -> NormStatistics:
        """Return the running averages with which the model was built.

        Args:
            like: a tensor with the dtype and the device that are wanted.
        """
        mean, variance = join_statistics(layer.averages() for layer in self.norm_layers.values())
        return NormStatistics(mean.to(like), variance.to(like))

    def with_statistics(self, statistics: NormStatistics | None) -> Task:
        """Return the same task, whose layers normalise by these running averages where a batch has no keys.

        Args:
            statistics: the averages of all layers; None for the moments of each batch.
        """
        other = copy.copy(self)
        other.statistics = statistics
        return other

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as one vector, in the model's order.

        Args:
            named: all parameters, or some of them.
        """
        return torch.cat([named[name].reshape(-1) for name in self.shapes if name in named])

    def unflatten(self, w: Tensor, prefix: str = "") -> dict[str, Tensor]:
        """Return the parameters by name, as views of w in their own shapes.

        Args:
            w: the parameters whose names begin with `prefix` as one vector, [P] for all of them.
            prefix: "head." for the head alone, "" for all.
        """
        shapes = {name: shape for name, shape in self.shapes.items() if name.startswith(prefix)}
        parts = torch.split(w, [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}

    def module(self, w: Tensor) -> nn.Module:
        """Return a copy of the model with the parameters `w`, on the CPU and in evaluation mode.

        Its layers have the running averages of `with_statistics`; without these they normalise by each batch's moments.

        Args:
            w: a model, [P].
        """
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.unflatten(w.detach()) | self._buffers(), strict=False)
        for layer in tracking_layers(model).values() if self.statistics is None else ():
            layer.running_mean = layer.running_var = None
        return model.cpu().eval()

    def mask(self, prefix: str, device: torch.device | None = None) -> Tensor:
        """Return bool [P], True at the entries of w that belong to parameters whose names begin with `prefix`.

        Args:
            prefix: such as "head.".
            device: where the result is wanted.

        Raises:
            UserError: no parameter's name begins so.
        """
        if not any(name.startswith(prefix) for name in self.shapes):
            raise UserError("model", NOT_SHOWN, f"has no parameters named '{prefix}…', which the method needs")
        parts = zip(self.shapes, self.sizes, strict=True)
        return torch.cat([torch.full((n,), name.startswith(prefix), device=device) for name, n in parts])

    def _call(self, part: str, w: Parameters, batch: Batch | None, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Call a part of the model with the parameters w, while `batch` is the current one."""
        named = w if isinstance(w, Mapping) else self.unflatten(self._to_compute(w))
        parameters = {f"model.{name}": self._to_compute(p) for name, p in named.items()}
        dtype = next(iter(parameters.values())).dtype
        parameters |= {name: p.to(dtype) if p.is_floating_point() else p for name, p in self._frozen.items()}
        inputs = tuple(self._to_compute(x, dtype) for x in inputs)
        named_inputs = {name: self._to_compute(x, dtype) for name, x in named_inputs.items()}
        parameters |= {f"model.{name}": average for name, average in self._buffers().items()}
        parameters |= {name: parameters[first] for name, first in self._tied.items() if first in parameters}
        evaluated = batch is None or batch.key is None
        running = self.statistics is not None and self._updated is None and evaluated
        _current_batch.extend([] if batch is None else [batch])
        try:
            with using_statistics(StatisticsUse(running, self._updated)), self._any_layout():
                outputs = functional_call(self._parts, parameters, (part, *inputs), named_inputs, tie_weights=False)
        finally:
            _current_batch.clear()
        outputs = getattr(outputs, "logits", outputs)  # Hugging Face models return a structure
        return self._to_float32(outputs) if isinstance(outputs, Tensor) else outputs

    def _to_compute(self, t: Any, dtype: torch.dtype | None = None) -> Any:
        """Return an input of the model in the dtype in which it computes. Its gradient is scaled down (float16).

        Whole numbers, such as tokens, and what is no tensor stay as they are. `dtype` is used if `compute` is None.
        """
        if not isinstance(t, Tensor) or not t.is_floating_point():
            return t
        if self.compute is None or t.dtype == self.compute:
            return t if dtype is None else t.to(dtype)
        return (_ScaleGrad.apply(t, 1 / GRADIENT_SCALE) if self.compute == torch.float16 else t).to(self.compute)

    def _to_float32(self, t: Tensor) -> Tensor:
        """Return an output of the model as float32 if it computes in 16 bits. Its gradient is scaled up (float16)."""
        if self.compute is None:
            return t
        return _ScaleGrad.apply(t.float(), GRADIENT_SCALE) if self.compute == torch.float16 else t.float()

    def _call_with_samples(self, part: str, w: Parameters, batch: Batch) -> Tensor:
        more = (batch,) if self._takes_batch else ()
        if isinstance(batch.x, dict):
            return self._call(part, w, batch, *more, **batch.x)
        inputs = batch.x if isinstance(batch.x, tuple) else (batch.x,)
        inputs = tuple(put_channels_last(x) if self.channels_last and x.dim() == 4 else x for x in inputs)
        return self._call(part, w, batch, *inputs, *more)

    def outputs(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the outputs [B, ...] of the model w.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call_with_samples("all", w, batch)

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

    def features(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the features [B, F] before the last layer. The model must have the parts `features` and `head`.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call_with_samples("features", w, batch)

    def head(self, w: Parameters, features: Tensor) -> Tensor:
        """Return the outputs [B, ...] from features: outputs(w, b) = head(w, features(w, b)).

        Args:
            w: the model, [P] or by name.
            features: what `features` returned, [B, F].
        """
        return self._call("head", w, None, features)

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

    def next_statistics(self, w: Tensor, batch: Batch, statistics: NormStatistics) -> NormStatistics:
        """Return the running averages after a batch, from a forward pass; arguments as in `grad_and_statistics`."""
        recorder = self._recorder(statistics)
        recorder.outputs(w, batch)
        return recorder._next_statistics()

    def _recorder(self, statistics: NormStatistics) -> Task:
        """Return the same task, whose layers write down their next averages."""
        recorder = self.with_statistics(statistics)
        recorder._updated = {}
        return recorder

    def _next_statistics(self) -> NormStatistics:
        """Return what the layers wrote down; the averages of layers that were not called stay."""
        updated = self._updated or {}
        before = zip(self.norm_layers.values(), self._layer_statistics(), strict=True)
        return join_statistics(updated.get(layer, averages) for layer, averages in before)

    def _layer_statistics(self) -> list[LayerStatistics]:
        """Return the running averages of each layer; none without `with_statistics`."""
        return [] if self.statistics is None else split_statistics(self.statistics, self._channels)

    def _buffers(self) -> dict[str, Tensor]:
        """Return the running averages as the model's buffers, by name; none without `with_statistics`."""
        return {} if self.statistics is None else named_buffers(self.norm_layers, self._layer_statistics())

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
