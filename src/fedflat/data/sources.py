"""Data sets by name: the embedded digits, prepared sets from the cache, the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedflat.data.dataset import Dataset
from fedflat.data.own import KINDS, is_own, load_own
from fedflat.data.prepared import cache_folder, inspect, prepared_path, read
from fedflat.data.sets import SETS
from fedflat.errors import UserError, near_miss, only_in_python

DIGITS_MEAN, DIGITS_STD = 0.305434, 0.375957  # of the training pixels


def load(name: str, cache: Path | None = None) -> Dataset:
    """The data set `name`: digits, a prepared set, or folder:PATH, npz:PATH, parquet:PATH."""
    if name == "digits":
        return _digits()
    if is_own(name):
        return load_own(name, cache)
    only_in_python("--dataset", name)
    if name not in SETS:
        known = ["digits", *SETS, *(f"{kind}:PATH" for kind in KINDS)]
        raise UserError(f"--dataset {name}: unknown data set{near_miss(name, known)}; allowed: {', '.join(known)}")
    path = prepared_path(name, cache)
    if not path.exists():
        raise UserError(f"--dataset {name}: not prepared in {path.parent}; run: fedflat data prepare {name}")
    return read(path)


def _digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, one in five of each class for testing."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    parts = train_test_split(pixels, labels, test_size=0.2, random_state=0, stratify=labels)
    x, x_test, y, y_test = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    return Dataset("digits", x, y.long(), x_test, y_test.long(), 10, (DIGITS_MEAN,), (DIGITS_STD,))


class Row(NamedTuple):
    """One line of `fedflat data list`; numbers are None where a set is not prepared."""

    name: str
    prepared: bool
    train: int | None
    test: int | None
    shape: tuple[int, ...] | None
    classes: int
    bytes: int
    path: Path | None
    source: str


def available(cache: Path | None = None) -> list[Row]:
    """Every known set, and the user's own that lie prepared in the cache."""
    named = {name: prepared_path(name, cache) for name in SETS}
    own = [path for kind in KINDS for path in sorted(cache_folder(cache).glob(f"{kind}-*.safetensors"))]
    digits = Row("digits", True, 1437, 360, (1, 8, 8), 10, 0, None, "embedded")
    return [digits, *(_row(path) if path.exists() else _missing(name) for name, path in named.items()), *map(_row, own)]


def _missing(name: str) -> Row:
    return Row(name, False, None, None, None, SETS[name].classes, 0, None, "")


def _row(path: Path) -> Row:
    about, shapes = inspect(path)
    sizes = (shapes["x"][0], shapes["x_test"][0], tuple(shapes["x"][1:]))
    return Row(about["name"], True, *sizes, int(about["classes"]), path.stat().st_size, path, about["source"])
