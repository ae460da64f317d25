"""torch's map-style data sets as arrays: every sample is read once, in order, and stacked."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from fedflat.errors import UserError


def stack_samples(what: str, source: Any) -> tuple[Any, np.ndarray]:
    """Return the inputs and the targets of a data set of torch; inputs are an array, or a tuple or dict of arrays.

    Args:
        what: what messages call the data set.
        source: has a length, and gives pairs (x, y) by number. x is a tensor, an array, a number or an image of pillow,
            or a tuple or dict of these; y is a number, a tensor or an array.

    Raises:
        UserError: samples cannot be read or do not fit together, or differ when they are read again.
    """
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        allowed = "a data set with len() and samples by number, such as torch.utils.data.TensorDataset"
        _refuse(what, f"is {type(source).__name__}, must be {allowed}")
    if not len(source):
        _refuse(what, "has no samples")
    pairs = [_read_pair(what, source, number) for number in range(len(source))]
    if not _equal(pairs[0], _read_pair(what, source, 0)):
        advice = "samples are read once, so leave random transforms out (augment= changes images in every epoch)"
        _refuse(what, f"gives another sample 0 when it is read again; {advice}")
    return _stack(what, [x for x, _ in pairs]), _stack(what, [y for _, y in pairs])


def _refuse(what: str, problem: str) -> NoReturn:
    raise UserError(None, what, problem)


def _read_pair(what: str, source: Any, number: int) -> tuple[Any, Any]:
    """Return the inputs and the target of one sample, as arrays."""
    try:
        sample = source[number]
    except Exception as error:  # whatever the user's data set raises
        raise UserError(None, what, f"sample {number} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        _refuse(what, f"sample {number} is {_kind(sample)}, must be a pair (x, y)")
    x, y = sample
    if isinstance(x, dict):
        return {name: _array(what, number, each) for name, each in x.items()}, _array(what, number, y)
    if isinstance(x, tuple):
        return tuple(_array(what, number, each) for each in x), _array(what, number, y)
    return _array(what, number, x), _array(what, number, y)


def _kind(sample: Any) -> str:
    return f"a {type(sample).__name__}" + (f" of {len(sample)}" if isinstance(sample, tuple | list | dict) else "")


def _array(what: str, number: int, value: Any) -> np.ndarray:
    """Return a tensor, an array, a number or an image as an array; images have their channels first."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "iufb":
        _refuse(what, f"sample {number} has a {type(value).__name__}, must be numbers; give the data set a transform")
    if type(value).__module__.startswith("PIL."):
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _stack(what: str, values: list[Any]) -> Any:
    """Return arrays, or tuples or dicts of arrays, with a new first axis."""
    if isinstance(values[0], dict):
        return {name: _stack(what, [value[name] for value in values]) for name in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_stack(what, list(each)) for each in zip(*values, strict=True))
    for number, value in enumerate(values):
        if value.shape != values[0].shape:
            sizes = f"sample {number} has shape {list(value.shape)} and sample 0 {list(values[0].shape)}"
            _refuse(what, f"{sizes}; all must have one (a transform can crop or pad)")
    return np.stack(values)
