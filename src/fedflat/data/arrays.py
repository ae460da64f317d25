"""Arrays that users give, as tensors: checked for kind, shape and values, with errors that say what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.batch import Samples
from fedflat.core.tasks import IGNORED
from fedflat.errors import UserError

MAX_CLASSES = 1_000_000  # a larger label is taken for a mistake, since the model has one output per class
COLOURS = (1, 3, 4)  # channels that images have


class TrainTestTensors(NamedTuple):
    """Training and test samples with their targets."""

    x: Samples
    y: Tensor
    x_test: Samples
    y_test: Tensor


def check_arrays(source: object, x: Any, y: Any, x_test: Any, y_test: Any) -> TrainTestTensors:
    """Convert arrays to tensors; raise UserError about `source`, where they come from, if they cannot be used.

    Args:
        source: what messages begin with.
        x: training samples, see `Dataset.from_arrays`.
        y: training targets.
        x_test: test samples.
        y_test: test targets.
    """
    tensors = TrainTestTensors(
        _check_inputs(source, "training samples", x),
        check_targets(source, "training labels", y),
        _check_inputs(source, "test samples", x_test),
        check_targets(source, "test labels", y_test),
    )
    for split, samples, targets in (("training", tensors.x, tensors.y), ("test", tensors.x_test, tensors.y_test)):
        for t in input_tensors(samples):
            if len(t) != len(targets):
                problem = f"{len(t)} {split} samples with {len(targets)} labels; give one label each"
                raise UserError(None, source, problem)
    pairs = ((tensors.x, tensors.x_test, "samples"), (tensors.y, tensors.y_test, "labels"))
    for train, test, what in pairs:
        kinds = [", ".join(map(_kind, input_tensors(each))) for each in (train, test)]
        if kinds[0] != kinds[1]:
            problem = f"training {what} are {kinds[0]} and test {what} {kinds[1]}; all must be of one kind"
            raise UserError(None, source, problem)
    return tensors


def input_tensors(x: Samples) -> list[Tensor]:
    """Return the tensors of the inputs, in order."""
    return [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)


def name_inputs(x: Samples) -> dict[str, Tensor]:
    """Return the tensors of the inputs by name, as a file can hold them: x, or x.0 and x.1, or x:NAME."""
    if isinstance(x, Tensor):
        return {"x": x}
    named = x.items() if isinstance(x, dict) else enumerate(x)
    return {f"x{':' if isinstance(x, dict) else '.'}{name}": t for name, t in named}


def unname_inputs(named: Mapping[str, Tensor]) -> Samples:
    """Return the inputs of which `name_inputs` made these tensors; other names are ignored."""
    if "x" in named:
        return named["x"]
    if given := {name[2:]: t for name, t in named.items() if name.startswith("x:")}:
        return given
    numbered = {int(name[2:]): t for name, t in named.items() if name.startswith("x.")}
    return tuple(numbered[n] for n in sorted(numbered))


def _kind(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}"


def count_outputs(source: object, tensors: TrainTestTensors, classes: int | None = None) -> int:
    """Return how many outputs a model needs for these targets.

    Labels of classes must be 0, 1, … without gaps: labels from 1, or a forgotten class, would be trained on silently.

    Args:
        source: what messages begin with.
        tensors: the data.
        classes: the number of classes or tokens if the user gave it; then gaps are allowed.
    """
    y = torch.cat([tensors.y, tensors.y_test])
    if y.is_floating_point():
        return y[0].numel()
    tokens = [t for x in (tensors.x, tensors.x_test) for t in input_tensors(x) if t.dtype == torch.int64]
    if y.dim() > 1 and not tokens:
        if not bool(((y == 0) | (y == 1)).all()):
            problem = f"targets [n, {y.shape[1]}] must be 0 or 1 for each label"
            raise UserError(None, source, f"{problem}; classes are [n]{', y[:, 0]' if y.shape[1] == 1 else ''}")
        return y.shape[1]
    largest = max(int(t.max()) for t in (y, *(tokens if y.dim() > 1 else [])))
    if classes is not None:
        if classes <= largest:
            raise UserError("classes", classes, f"the largest label is {largest}; give at least {largest + 1}")
        return classes
    if y.dim() == 1:
        _check_gaps(source, y, largest)
    return largest + 1


def _check_gaps(source: object, y: Tensor, largest: int) -> None:
    """Raise UserError if a label from 0 to the largest never occurs."""
    found = y.unique()
    if len(found) == largest + 1:
        return
    if int(found[0]) == 1 and len(found) == largest:
        raise UserError(None, source, f"labels are 1 to {largest}; number the classes from 0 (subtract 1)")
    missing = sorted(set(range(largest + 1)) - set(found.tolist()))
    shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
    advice = f"give classes={largest + 1} if they are meant, or number the classes 0 to {len(found) - 1}"
    never = "never occur" if len(missing) > 1 else "never occurs"
    raise UserError(None, source, f"labels go up to {largest}, but {shown} {never}; {advice}")


def as_array(source: object, what: str, values: Any) -> np.ndarray:
    """Return values as an array; raise UserError about `source` if they are none."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        if "inhomogeneous" in str(error) and "samples" in what:
            problem = f"{what} have different lengths; fill them up to one, and give a mask as second input, (x, mask)"
            raise UserError(None, source, problem) from error
        raise UserError(None, source, f"{what} cannot be read as an array ({error})") from error


def _check_inputs(source: object, what: str, values: Any) -> Samples:
    """Return the samples as one tensor, or as a tuple or dict of tensors if several inputs are given."""
    if isinstance(values, dict):
        return {str(name): _check_input(source, f"{what} '{name}'", each) for name, each in values.items()}
    if isinstance(values, tuple) and values and all(isinstance(each, np.ndarray | Tensor) for each in values):
        return tuple(_check_input(source, f"{what} {n}", each) for n, each in enumerate(values))
    return _check_samples(source, what, values)


def _check_input(source: object, what: str, values: Any) -> Tensor:
    """Return one of several inputs; uint8 are images, and not a mask, which would be divided by 255."""
    samples = _check_samples(source, what, values)
    if samples.dtype == torch.uint8 and samples.dim() != 4:
        problem = f"{what} are uint8 {['n', *samples.shape[1:]]}, which is for images [n, c, h, w]".replace("'n'", "n")
        raise UserError(None, source, f"{problem}; give tokens and masks as int64, numbers as floats")
    return samples


def _check_samples(source: object, what: str, values: Any) -> Tensor:
    """Return uint8 images as they are, other whole numbers as int64, floats as float32; numbers become vectors."""
    array = as_array(source, what, values)
    if not array.size or not array.ndim:
        raise UserError(None, source, f"{what} have shape {list(array.shape)}; give at least one")
    if array.dtype.kind not in "iuf":
        allowed = "uint8 for images, floating-point numbers, and whole numbers for tokens and masks"
        raise UserError(None, source, f"{what} are {array.dtype}; allowed are {allowed}")
    if array.ndim == 4 and array.shape[3] in COLOURS and array.shape[1] not in COLOURS:
        problem = f"{what} have shape {list(array.shape)}, channels last; give x.transpose(0, 3, 1, 2)"
        raise UserError(None, source, problem)
    array = array[:, None] if array.ndim == 1 else array
    if array.dtype.kind == "f":
        array = _finite_float32(source, what, array)
    elif array.dtype != np.uint8:
        array = _whole_numbers(source, what, array)
    return torch.from_numpy(np.require(array, None, ["C", "W"]))


def _whole_numbers(source: object, what: str, array: np.ndarray) -> np.ndarray:
    if array.min() < 0:
        raise UserError(None, source, f"{what} hold {array.min()}; tokens are whole numbers from 0")
    return array.astype(np.int64, copy=False)


def _finite_float32(source: object, what: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite and are refused below
        floats = array.astype(np.float32, copy=False)
    if bad := int((~np.isfinite(floats)).sum()):
        problem = f"{what} hold {bad} of {floats.size} numbers that are not finite in 32 bits (NaN or infinite)"
        raise UserError(None, source, problem)
    return floats


def check_targets(source: object, what: str, values: Any) -> Tensor:
    """Return targets: labels and tokens as int64, numbers as float32; raise UserError if they are neither.

    Args:
        source: what messages begin with.
        what: what the targets are called.
        values: the array [n, ...].
    """
    array = as_array(source, what, values)
    if array.dtype.kind == "f" and array.ndim in (1, 2) and array.size:
        return torch.from_numpy(np.require(_finite_float32(source, what, array), None, ["C", "W"]))
    if array.dtype.kind in "iub" and array.ndim == 2 and array.size:
        return _check_many(source, what, array)
    return check_labels(source, what, array)


def _check_many(source: object, what: str, array: np.ndarray) -> Tensor:
    """Return targets of several whole numbers for each sample: labels 0 and 1, or tokens."""
    if array.min() < 0 and bool(((array < 0) & (array != IGNORED)).any()):
        raise UserError(None, source, f"{what} must be whole numbers from 0, or {IGNORED} where they do not count")
    return torch.from_numpy(array.astype(np.int64))


def check_labels(source: object, what: str, values: Any) -> Tensor:
    """Return labels as int64; raise UserError if they are not a list of whole numbers from 0 to MAX_CLASSES - 1.

    Args:
        source: what messages begin with.
        what: what the labels are called.
        values: the array [n].
    """
    labels = as_array(source, what, values)
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or labels.min(initial=0) < 0:
        advice = "np.unique(y, return_inverse=True)[1] numbers any classes"
        raise UserError(None, source, f"{what} must be a list of whole numbers from 0; {advice}")
    if (largest := labels.max(initial=0)) >= MAX_CLASSES:
        problem = f"{what}: the largest is {largest}; number the classes from 0 (at most {MAX_CLASSES:,} are possible)"
        raise UserError(None, source, problem)
    return torch.from_numpy(labels.astype(np.int64))
