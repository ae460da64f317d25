"""Checks of models that users give: whether they can be trained as functions of a parameter vector and a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from fedflat.errors import NOT_SHOWN, UserError

if TYPE_CHECKING:
    from fedflat.core.task import Batch, Samples, Task


def check_model(model: Any) -> None:
    """Raise UserError if a model cannot be trained as a pure function of its parameters and a batch.

    Refused are objects that are no nn.Module, models that have nothing to train, and torch's BatchNorm and dropout,
    which `fedflat.models.adapt_layers` replaces: running statistics are no parameters, padding would count as samples,
    and dropout would draw from the global random state.

    Args:
        model: what the user gave, or what their function returned.
    """
    if not isinstance(model, nn.Module):
        _refuse(f"the function that builds it returned {model!r}, must return an nn.Module")
    if not list(model.parameters()):
        _refuse(f"{type(model).__name__} has no parameters; there is nothing to train")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        _refuse(f"all parameters of {type(model).__name__} have requires_grad=False; there is nothing to train")
    for name, module in model.named_modules():
        layer = f"layer '{name}' ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._NormBase) and _counts_padding(module):
            _refuse(f"{layer} would take padding for samples; use fedflat.models.layers.BatchNorm")
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            _refuse(f"{layer} {_GLOBAL_RANDOMNESS}")


def _counts_padding(module: nn.modules.batchnorm._NormBase) -> bool:
    """Return whether a layer of torch normalises over samples, or with running statistics."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or module.running_mean is not None


_GLOBAL_RANDOMNESS = (
    "draws from the global random state, which would make results depend on the engine; use "
    "fedflat.models.layers.Dropout"
)


def _refuse(problem: str) -> NoReturn:
    raise UserError("model", NOT_SHOWN, problem)


def check_model_output(task: Task, w: Tensor, batch: Batch, classes: int) -> None:
    """Raise UserError if the model cannot take these samples, or its outputs do not fit the task.

    A classifier must return logits [B, classes]; more than `classes` scores for each sample are allowed. The outputs of
    other tasks must give a loss for each sample. A forward pass that draws random numbers from torch's global state is
    refused too.

    Args:
        task: the model.
        w: its parameters, [P].
        batch: samples of the data set.
        classes: the number of outputs that the data set needs.
    """
    count, before = len(batch.y), _random_state(w.device)
    try:
        with torch.no_grad():
            outputs = task.outputs(w, batch)
    except Exception as error:  # whatever the user's model raises; Python's traceback shows it above ours
        raise UserError("model", NOT_SHOWN, f"cannot take samples {_shapes(batch.x)} ({error})") from error
    given = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if task.class_scores:
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != count or outputs.shape[1] < classes:
            _refuse(f"gives {given} for {count} samples of {classes} classes, must be [{count}, {classes}]")
    else:
        _check_losses(task, outputs, batch, f"gives {given} for {count} samples with targets {list(batch.y.shape)}")
    if not torch.equal(before, _random_state(w.device)):
        _refuse(f"its forward {_GLOBAL_RANDOMNESS}")


def _check_losses(task: Task, outputs: Any, batch: Batch, given: str) -> None:
    """Raise UserError if the task cannot compute one loss for each sample from these outputs."""
    try:
        losses = task.sample_losses(outputs, batch)
    except Exception as error:  # whatever the user's loss raises
        raise UserError("model", NOT_SHOWN, f"{given}, of which {task.name} cannot compute a loss ({error})") from error
    if losses.shape != batch.mask.shape:
        raise UserError("task", task.name, f"its loss gives {list(losses.shape)}, must be one number for each sample")


def _shapes(x: Samples) -> str:
    """Return the shape of one sample in words: of shape 3x32x32."""
    tensors = [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)
    return "of shape " + ", ".join("x".join(map(str, t.shape[1:])) or "1" for t in tensors)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
