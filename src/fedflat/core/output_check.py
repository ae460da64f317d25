"""Check of a model and a task on two samples: what is not plain arithmetic on tensors is said before training."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves

from fedflat.core.batch import Batch, Samples, map_samples, select_samples
from fedflat.core.model_check import GLOBAL_RANDOMNESS, refuse_model
from fedflat.core.task import Task
from fedflat.core.tasks import TASKS
from fedflat.errors import NOT_SHOWN, UserError, mention, shorten
from fedflat.own_code import name_error

TOGETHER = "it is computed for many clients at once"
RULES = {  # parts of torch's messages, and what they mean for a model or a loss
    "data-dependent control flow": f"{TOGETHER}, so that `if` and .item() cannot look at a tensor; use torch.where",
    "data pointer": "a tensor cannot become an array of numpy here; use functions of torch",
    "mutate a captured Tensor": "nothing may be changed in place, such as a buffer in forward",
    "Batch norm got a batched tensor": "F.batch_norm counts padding; use nn.BatchNorm*, which is replaced by fedflat's",
}
RESERVED = ("round", "seed", "loss", "seconds", "probes")  # what rows of metrics.jsonl have beside the metrics
Metrics = Mapping[str, Tensor | float]


def check_model_output(task: Task, w: Tensor, batch: Batch, classes: int) -> None:
    """Raise UserError if the model cannot take these samples, or its outputs do not fit the task.

    A classifier must return logits [B, classes]; more than `classes` scores for each sample are allowed. The outputs of
    other tasks must give a loss for each sample, which depends on this sample alone. A forward pass that draws random
    numbers from torch's global state is refused too.

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
        problem = f"cannot take samples {_shapes(batch.x)} ({error}){_advice(batch.x)}"
        raise UserError("model", NOT_SHOWN, problem) from error
    given = _shape(outputs)
    scores = isinstance(outputs, Tensor) and outputs.dim() == 2 and len(outputs) == count
    if task.class_scores and not (scores and outputs.shape[1] >= classes):
        refuse_model(f"gives {given} for {count} samples of {classes} classes, must be [{count}, {classes}]")
    if not task.class_scores or is_own_task(task):
        _check_losses(task, outputs, batch, f"gives {given} for {count} samples with targets {list(batch.y.shape)}")
    if not torch.equal(before, _random_state(w.device)):
        refuse_model(_random_part(task.model))


def _random_part(model: nn.Module) -> str:
    """Return what in a model draws random numbers, why they are refused, and what to do."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
            return f"layer '{name}' ({type(module).__name__}) {GLOBAL_RANDOMNESS}; set its dropout to 0"
    return f"its forward {GLOBAL_RANDOMNESS}; use nn.Dropout layers, which fedflat replaces by its own"


def is_own_task(task: Task) -> bool:
    """Return whether a task is not one of this package."""
    return type(task) not in TASKS.values()


def check_arithmetic(task: Task, w: Tensor, batch: Batch, vectorised: bool) -> None:
    """Raise UserError if the gradient of the model, or of the user's task, is not plain arithmetic on tensors.

    Args:
        task: the model and its loss.
        w: the model's parameters, [P].
        batch: some samples.
        vectorised: whether the engine trains many clients at once.
    """
    _try_gradient("model", NOT_SHOWN, grad(lambda v, each: _sum(task.outputs(v, each))), w, batch, vectorised)
    if is_own_task(task):
        _try_gradient("task", task.name, grad(task.loss), w, batch, vectorised)


def _sum(outputs: Any) -> Tensor:
    """Return the sum of a model's outputs, which may be a tensor or, for a task of the user's, several."""
    return torch.stack([t.sum() for t in tree_leaves(outputs) if isinstance(t, Tensor)]).sum()


def _try_gradient(
    option: str, value: Any, gradient: Callable[[Tensor, Batch], Tensor], w: Tensor, batch: Batch, vectorised: bool
) -> None:
    """Compute a gradient as engines do; raise UserError, about this option, if that is not possible."""

    def of_lane(w: Tensor, x: Samples, y: Tensor, mask: Tensor) -> Tensor:
        return gradient(w, Batch(x, y, mask, None))

    try:
        with torch.no_grad():
            if vectorised:
                vmap(of_lane)(w[None], map_samples(lambda t: t[None], batch.x), batch.y[None], batch.mask[None])
            else:
                gradient(w, batch)
    except UserError:
        raise
    except Exception as error:  # whatever torch raises
        rule = next((rule for part, rule in RULES.items() if part in str(error)), name_error(error))
        if vectorised and rule.startswith(TOGETHER):
            rule += f", or {mention('engine', 'sequential')}"
        raise UserError(option, value, f"{_place(error)}{rule}") from error


def _place(error: BaseException) -> str:
    """Return the user's line in which an exception arose: "line 12 of net.py (if x.max() > 0:): "; '' if none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"line {last.lineno} of {last.filename.rpartition('/')[2]} ({shorten(last.line or '')}): "


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to this package, to another installed one, or is none at all."""
    package = str(Path(__file__).parents[1])
    return file.startswith(("<", package, sysconfig.get_path("stdlib"))) or "-packages/" in file


def compute_metrics(task: Task, predictions: Tensor, targets: Tensor, every: bool = False) -> Metrics:
    """Return the metrics of a test set; those of a task that is not of this package are checked.

    Args:
        task: the task.
        predictions: as in `Task.metrics`.
        targets: as in `Task.metrics`.
        every: whether to compute `Task.all_metrics`.

    Raises:
        UserError: the user's metrics cannot be computed, or are no numbers by name.
    """
    measure = task.all_metrics if every else task.metrics
    if not is_own_task(task):
        return measure(predictions, targets)
    try:
        found = measure(predictions, targets)
    except Exception as error:  # whatever the user's metrics raise
        problem = f"{_place(error)}its metrics cannot be computed ({name_error(error)})"
        raise UserError("task", task.name, problem) from error
    if not isinstance(found, Mapping):
        raise UserError("task", task.name, f"metrics returns a {type(found).__name__}, must return numbers by name")
    for name, value in found.items():
        if name in RESERVED:
            raise UserError("task", task.name, f"a metric is called {name}, a name that the run itself uses")
        if not _is_number(value):
            raise UserError("task", task.name, f"its metric {name} is {_shape(value)}, must be one number")
    if task.metric not in found:
        problem = f"metrics gives {', '.join(found)}, not {task.metric}, the main one; write metric = "
        raise UserError("task", task.name, f"{problem}{next(iter(found), '…')!r} in the class {type(task).__name__}")
    return found


def _is_number(value: Any) -> bool:
    try:
        return torch.as_tensor(value).dim() == 0
    except (TypeError, ValueError, RuntimeError):
        return False


def _check_losses(task: Task, outputs: Any, batch: Batch, given: str) -> None:
    """Raise UserError if the task cannot compute one loss for each sample from these outputs."""
    try:
        losses = task.sample_losses(outputs, batch)
    except Exception as error:  # whatever the user's loss raises
        if is_own_task(task):
            what = f"its loss of outputs {_shape(outputs)} and targets {list(batch.y.shape)}"
            problem = f"{_place(error)}{what} cannot be computed ({name_error(error)})"
            raise UserError("task", task.name, problem) from error
        raise UserError("model", NOT_SHOWN, f"{given}, of which {task.name} cannot compute a loss ({error})") from error
    if not isinstance(losses, Tensor) or losses.shape != batch.mask.shape:
        problem = f"its loss gives {_shape(losses)}, must be one number for each sample, {list(batch.mask.shape)}"
        raise UserError("task", task.name, f"{problem} (reduction='none')")
    if not isinstance(outputs, Tensor):
        return
    alone = [task.sample_losses(outputs[n : n + 1], select_samples(batch, slice(n, n + 1))) for n in range(len(losses))]
    if not torch.allclose(torch.cat(alone), losses, rtol=1e-3, atol=1e-6, equal_nan=True):
        shapes = f"outputs {list(outputs.shape)} and targets {list(batch.y.shape)}"
        problem = f"the loss of a sample depends on the other samples of its batch; are {shapes} broadcast?"
        raise UserError("task", task.name, problem)


def _advice(x: Samples) -> str:
    """Return what else may be wrong with samples that a model cannot take."""
    tensors = [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)
    if tokens := [t for t in tensors if t.dtype == torch.int64]:
        largest = max(int(t.max()) for t in tokens)
        return f"; whole numbers are tokens here, up to {largest}: give numbers as floats, images as uint8"
    return "; images need channels, x[:, None]" if [t.dim() for t in tensors] == [3] else ""


def _shape(value: Any) -> Any:
    """Return the shape of a tensor or an array, or the type of anything else, for a message."""
    return list(value.shape) if hasattr(value, "shape") else type(value).__name__


def _shapes(x: Samples) -> str:
    """Return the shape of one sample in words: of shape 3x32x32."""
    tensors = [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)
    return "of shape " + ", ".join("x".join(map(str, t.shape[1:])) or "1" for t in tensors)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
