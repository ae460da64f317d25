"""Pickles from elsewhere, read without giving them the chance to run anything.

A pickle names the functions to call. Here only what rebuilds a numpy array of numbers is known; any other name is
refused before it is looked up, so nothing of the file's choosing is imported or called.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np

from fedflat.errors import UserError


def _empty(*_: object) -> np.ndarray:
    """The array that numpy's own reconstruction starts from; its contents follow as state."""
    return np.empty(0, np.uint8)


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): object,  # only ever handed to _reconstruct, which ignores it
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
}


class _Plain(pickle.Unpickler):
    """An unpickler for numbers, strings, containers and numpy arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise UserError(f"the pickle calls {module}.{name}; only plain arrays are allowed, so nothing was run")
        return _KNOWN[module, name]


def load_plain(file: BinaryIO) -> Any:
    """What the pickle holds; strings written by Python 2 come as bytes."""
    try:
        return _Plain(file, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{getattr(file, 'name', 'file')}: {error}") from error
