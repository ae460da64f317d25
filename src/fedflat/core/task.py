"""A model and its loss as functions of one flat parameter vector, and checks of models that users give.

Where the model computes in float16, gradients inside it are scaled up by GRADIENT_SCALE, because small ones would be
rounded to 0 there, and scaled down again where they leave it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

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


class Batch(NamedTuple):
    """The samples of one local step. B counts padding too: batches are padded so that many clients' have one shape.

    Args:
        x: inputs, [B, channels, height, width] for images.
        y: labels, integers [B].
        mask: bool [B], False for padding, which no loss and no statistic may depend on.
        key: int64 [B], a hash for every sample from which dropout is drawn; None at evaluation.
        step: the number j of steps that the client took before in this round, a scalar tensor; () outside training.
        steps: the number K of its steps in this round, a scalar tensor; () outside training.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor | None
    step: Tensor = ()  # type: ignore[assignment]
    steps: Tensor = ()  # type: ignore[assignment]


Parameters = Tensor | Mapping[str, Tensor]  # a model: one vector [P], or tensors by name as `Task.unflatten` gives


class _Parts(nn.Module):
    """A module through which functional_call can call one part of a model: "all", "features" or "head"."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: str, *inputs: Any) -> Tensor:
        target = self.model if part == "all" else getattr(self.model, part)
        return target(*inputs)


class Task:
    """Classification with a model whose parameters are one flat vector w, [P].

    All functions are pure and run under torch.func.vmap, so that the same code trains one client or many at once.

    `shapes` has the parameters' shapes by name, in the order in which w holds them; `size` is P. `has_head` tells
    whether the model has the parts `features` and `head`, which `features` and `head` below need.

    Args:
        model: gives logits [B, classes] for inputs. A model with the attribute `takes_batch = True` is called as
            model(x, batch), any other as model(x). Its own parameter values are not used.
        compute: the dtype in which the model computes (float16, bfloat16); that of w unless given. Logits are float32
            and gradients have w's dtype in any case.

    Raises:
        UserError: the model cannot be trained as a function of w, see `check_model`.
    """

    def __init__(self, model: nn.Module, compute: torch.dtype | None = None) -> None:
        check_model(model)
        self.model, self.compute = model, compute
        self._parts = _Parts(model)
        self._takes_batch = getattr(model, "takes_batch", False)
        self.has_head = hasattr(model, "features") and hasattr(model, "head")
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.size = sum(self.sizes)

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

        Args:
            w: a model, [P].
        """
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.unflatten(w.detach()), strict=False)
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
            _refuse(f"has no parameters named '{prefix}…', which the method needs")
        parts = zip(self.shapes, self.sizes, strict=True)
        return torch.cat([torch.full((n,), name.startswith(prefix), device=device) for name, n in parts])

    def _call(self, part: str, w: Parameters, x: Tensor, *more: Any) -> Tensor:
        """Call a part of the model with the parameters w."""
        named = w if isinstance(w, Mapping) else self.unflatten(self._to_compute(w))
        parameters = {f"model.{name}": self._to_compute(p) for name, p in named.items()}
        x = self._to_compute(x).to(next(iter(parameters.values())).dtype)
        return self._to_float32(functional_call(self._parts, parameters, (part, x, *more)))

    def _to_compute(self, t: Tensor) -> Tensor:
        """Return an input of the model in the dtype in which it computes. Its gradient is scaled down (float16)."""
        if self.compute is None or t.dtype == self.compute:
            return t
        return (_ScaleGrad.apply(t, 1 / GRADIENT_SCALE) if self.compute == torch.float16 else t).to(self.compute)

    def _to_float32(self, t: Tensor) -> Tensor:
        """Return an output of the model as float32 if it computes in 16 bits. Its gradient is scaled up (float16)."""
        if self.compute is None:
            return t
        return _ScaleGrad.apply(t.float(), GRADIENT_SCALE) if self.compute == torch.float16 else t.float()

    def _inputs(self, batch: Batch) -> tuple[Any, ...]:
        return (batch.x, batch) if self._takes_batch else (batch.x,)

    def logits(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the class scores [B, classes] of the model w.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call("all", w, *self._inputs(batch))

    def features(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the features [B, F] before the last layer. The model must have the parts `features` and `head`.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call("features", w, *self._inputs(batch))

    def head(self, w: Parameters, features: Tensor) -> Tensor:
        """Return the class scores [B, classes] from features: logits(w, b) = head(w, features(w, b)).

        Args:
            w: the model, [P] or by name.
            features: what `features` returned, [B, F].
        """
        return self._call("head", w, features)

    def mean(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the mean of per-sample values over the samples that are not padding, 0 if all are.

        Args:
            values: one number for each sample, [B].
            batch: the samples.
        """
        return (values * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of −log softmax(logits)[y] over the samples, a scalar.

        Args:
            logits: class scores, [B, classes].
            batch: the samples, of which the labels and the mask are used.
        """
        true_class = logits.gather(-1, batch.y[:, None])[:, 0]
        return self.mean(logits.logsumexp(-1) - true_class, batch)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the loss f(w), a scalar: the mean cross entropy of the batch.

        Args:
            w: the model, [P].
            batch: the samples.
        """
        return self.cross_entropy(self.logits(w, batch), batch)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the gradient ∇f(w) of `loss`, [P].

        Args:
            w: the model, [P].
            batch: the samples.
        """
        return grad(self.loss)(w, batch)


def check_model(model: Any) -> None:
    """Raise UserError if a model cannot be trained as a pure function of its parameters and a batch.

    Refused are objects that are no nn.Module, models without parameters or with frozen ones, torch's BatchNorm (running
    statistics are no parameters, and padding would count as samples) and torch's dropout (it draws from the global
    random state).

    Args:
        model: what the user gave, or what their function returned.
    """
    if not isinstance(model, nn.Module):
        _refuse(f"the function that builds it returned {model!r}, must return an nn.Module")
    _check_parameters(model)
    for name, module in model.named_modules():
        layer = f"layer '{name}' ({type(module).__name__})"
        if getattr(module, "running_mean", None) is not None:
            _refuse(
                f"{layer} keeps running statistics, which clients cannot average; use GroupNorm, LayerNorm or "
                "fedflat.models.layers.BatchNorm"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            _refuse(
                f"{layer} would take the padding of a batch for samples; use fedflat.models.layers.BatchNorm, "
                "GroupNorm or LayerNorm"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            _refuse(f"{layer} {_GLOBAL_RANDOMNESS}")


_GLOBAL_RANDOMNESS = (
    "draws from the global random state, which would make results depend on the engine; use "
    "fedflat.models.layers.Dropout"
)


def _refuse(problem: str) -> NoReturn:
    raise UserError("model", NOT_SHOWN, problem)


def _check_parameters(model: nn.Module) -> None:
    """Raise UserError if the model has no parameters, or one that is not to be trained."""
    if not list(model.parameters()):
        _refuse(f"{type(model).__name__} has no parameters; there is nothing to train")
    if frozen := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        _refuse(f"parameter '{frozen[0]}' has requires_grad=False; all parameters are trained, set it to True")


def check_model_output(task: Task, w: Tensor, batch: Batch, classes: int) -> None:
    """Raise UserError if the model cannot take these samples, or does not return logits [B, classes] for them.

    More than `classes` scores for each sample are allowed. A forward pass that draws random numbers from torch's global
    state is refused too.

    Args:
        task: the model.
        w: its parameters, [P].
        batch: samples of the data set.
        classes: the number of classes of the data set.
    """
    shape, count = "x".join(map(str, batch.x.shape[1:])), len(batch.x)
    before = _random_state(w.device)
    try:
        with torch.no_grad():
            scores = task.logits(w, batch)
    except Exception as error:  # whatever the user's model raises; Python's traceback shows it above ours
        raise UserError("model", NOT_SHOWN, f"cannot take samples of shape {shape} ({error})") from error
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != count or scores.shape[1] < classes:
        output = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        _refuse(f"gives {output} for {count} samples of {classes} classes, must be [{count}, {classes}]")
    if not torch.equal(before, _random_state(w.device)):
        _refuse(f"its forward {_GLOBAL_RANDOMNESS}")


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
