"""A model and its loss as functions of one flat parameter vector, and the scaling of gradients in fp16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedflat.errors import UserError

GRADIENT_SCALE = 256.0  # gradients of 2⁻²⁴/256 … 65504/256 survive


class _ScaleGrad(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

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


def unscale_gradient(x: Tensor) -> Tensor:
    """A tensor on its way into the model: its gradient comes back at its true size."""
    return _ScaleGrad.apply(x, 1 / GRADIENT_SCALE)


def scale_gradient(y: Tensor) -> Tensor:
    """A tensor on its way out: gradients enter the model enlarged."""
    return _ScaleGrad.apply(y, GRADIENT_SCALE)


class Batch(NamedTuple):
    """Samples of one step. `mask` is False at padding; `key` are per-sample random words, None at evaluation."""

    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor | None


Parameters = Tensor | Mapping[str, Tensor]  # a model as one vector, or by name where a method works on parts of it


class _Parts(nn.Module):
    """Gives functional_call a way to the parts of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: str, *inputs: Any) -> Tensor:
        target = self.model if part == "all" else getattr(self.model, part)
        return target(*inputs)


class Task:
    """Classification with `model`: every function takes the parameters as a vector w of length `size`.

    All functions are pure and run under torch.func.vmap, so the same code serves one client and many.
    """

    def __init__(self, model: nn.Module, compute: torch.dtype | None = None) -> None:
        """`compute` is the type in which the model calculates, where it is not that of w."""
        check_model(model)
        self.model, self.compute = model, compute
        self._parts = _Parts(model)
        self._takes_batch = getattr(model, "takes_batch", False)
        self.has_head = hasattr(model, "features") and hasattr(model, "head")
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.size = sum(self.sizes)

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """One vector from named tensors (all, or those of a part), in the model's order."""
        return torch.cat([named[name].reshape(-1) for name in self.shapes if name in named])

    def unflatten(self, w: Tensor, prefix: str = "") -> dict[str, Tensor]:
        """Named tensors (views of w) from one vector of the parameters named `prefix`…"""
        shapes = {name: shape for name, shape in self.shapes.items() if name.startswith(prefix)}
        parts = torch.split(w, [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}

    def mask(self, prefix: str, device: torch.device | None = None) -> Tensor:
        """True at the entries of w that belong to parameters named `prefix`…"""
        if not any(name.startswith(prefix) for name in self.shapes):
            raise UserError(f"--model: has no parameters named '{prefix}…', which the method needs")
        parts = zip(self.shapes, self.sizes, strict=True)
        return torch.cat([torch.full((n,), name.startswith(prefix), device=device) for name, n in parts])

    def _call(self, part: str, w: Parameters, x: Tensor, *more: Any) -> Tensor:
        named = w if isinstance(w, Mapping) else self.unflatten(self._enter(w))
        placed = {f"model.{name}": self._enter(p) for name, p in named.items()}
        x = self._enter(x).to(next(iter(placed.values())).dtype)
        return self._leave(functional_call(self._parts, placed, (part, x, *more)))

    def _enter(self, t: Tensor) -> Tensor:
        """A tensor in the type in which the model calculates."""
        if self.compute is None or t.dtype == self.compute:
            return t
        return (unscale_gradient(t) if self.compute == torch.float16 else t).to(self.compute)

    def _leave(self, t: Tensor) -> Tensor:
        """What the model gives, in 32 bits where it calculates in fewer."""
        if self.compute is None:
            return t
        return scale_gradient(t.float()) if self.compute == torch.float16 else t.float()

    def _inputs(self, batch: Batch) -> tuple[Any, ...]:
        return (batch.x, batch) if self._takes_batch else (batch.x,)

    def logits(self, w: Parameters, batch: Batch) -> Tensor:
        """Class scores [B, classes]."""
        return self._call("all", w, *self._inputs(batch))

    def features(self, w: Parameters, batch: Batch) -> Tensor:
        """Penultimate features [B, F]."""
        return self._call("features", w, *self._inputs(batch))

    def head(self, w: Parameters, features: Tensor) -> Tensor:
        """Class scores from penultimate features: logits(w, b) = head(w, features(w, b))."""
        return self._call("head", w, features)

    def mean(self, values: Tensor, batch: Batch) -> Tensor:
        """Mean of per-sample values over the real samples of the batch."""
        return (values * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean of −log softmax(logits)[y]."""
        picked = logits.gather(-1, batch.y[:, None])[:, 0]
        return self.mean(logits.logsumexp(-1) - picked, batch)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """The local loss: mean cross entropy."""
        return self.cross_entropy(self.logits(w, batch), batch)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """∇ loss at w."""
        return grad(self.loss)(w, batch)


def check_model(model: Any) -> None:
    """Refuse what cannot be trained as a pure function of parameters and batch."""
    if not isinstance(model, nn.Module):
        raise UserError(f"--model: the function that builds it returned {model!r}, must return an nn.Module")
    _check_parameters(model)
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise UserError(
                f"--model: layer '{name}' ({type(module).__name__}) keeps running statistics, which clients cannot "
                "average; use GroupNorm, LayerNorm or fedflat.models.layers.BatchNorm"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"--model: layer '{name}' ({type(module).__name__}) would take the padding of a batch for samples; "
                "use fedflat.models.layers.BatchNorm, GroupNorm or LayerNorm"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise UserError(
                f"--model: layer '{name}' ({type(module).__name__}) draws from the global random state, which would "
                "make results depend on the engine; use fedflat.models.layers.Dropout"
            )


def _check_parameters(model: nn.Module) -> None:
    """There are some, and all are to be trained."""
    if not list(model.parameters()):
        raise UserError(f"--model: {type(model).__name__} has no parameters; there is nothing to train")
    if frozen := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        raise UserError(
            f"--model: parameter '{frozen[0]}' has requires_grad=False; all parameters are trained, set it to True"
        )


def check_model_output(task: Task, w: Tensor, batch: Batch, classes: int) -> None:
    """Refuse a model that cannot take these samples, or does not give each a score for every class."""
    shape, count = "x".join(map(str, batch.x.shape[1:])), len(batch.x)
    before = _random_state(w.device)
    try:
        with torch.no_grad():
            scores = task.logits(w, batch)
    except Exception as error:  # whatever the user's model raises; Python shows it above ours
        raise UserError(f"--model: cannot take samples of shape {shape} ({error})") from error
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != count or scores.shape[1] < classes:
        found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise UserError(
            f"--model: gives {found} for {count} samples of {classes} classes, must be [{count}, {classes}]"
        )
    if not torch.equal(before, _random_state(w.device)):
        raise UserError(
            "--model: its forward draws from the global random state, which would make results depend on the engine; "
            "use fedflat.models.layers.Dropout"
        )


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
