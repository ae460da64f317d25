"""Tables from CSV and parquet files: columns of numbers and of categories as samples, one column as the target.

Numbers are standardised by the mean and the standard deviation of the training rows; categories become one column of 0
and 1 for each value that occurs. Every fifth row or so, chosen by a hash of its number, is a test sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedflat.core.random import hash_words, purpose_key
from fedflat.data.dataset import Dataset
from fedflat.data.image_files import explain_read_errors, number_clients
from fedflat.errors import UserError, near_miss

MAX_CATEGORIES = 1000  # of one column; more are taken for a mistake, such as a column of names


def load_table(
    path: str | Path,
    target: str,
    features: Sequence[str] = (),
    client: str | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Return the rows of a table as a data set.

    A target of decimal numbers is for regression; whole numbers, words, and true or false are classes, numbered in
    their order.

    Args:
        path: a .csv file with a header, or a .parquet file.
        target: the column to predict.
        features: the columns to predict it from; all but `target` and `client` unless given.
        client: the column that names each row's client, None if a partition assigns the rows.
        test_share: the share of rows that are test samples.

    Raises:
        UserError: the file cannot be read, a column is missing, or has values that cannot be used.
    """
    if not 0 < test_share < 1:
        raise UserError("test_share", test_share, "must be between 0 and 1")
    path = Path(path)
    columns = _read_columns(path)
    for name in (target, *features, *([client] if client else [])):
        if name not in columns:
            raise UserError(None, path, f"has no column '{name}'{near_miss(name, columns)}; it has {_listed(columns)}")
    chosen = list(features) or [name for name in columns if name not in (target, client)]
    y = _target(path, target, columns[target])
    order = hash_words(purpose_key("table"), torch.arange(len(y))).argsort(stable=True).numpy()
    count = round(test_share * len(y))
    if not 0 < count < len(y):
        raise UserError("test_share", test_share, f"leaves {len(y) - count} training and {count} test rows of {len(y)}")
    test, train = np.sort(order[:count]), np.sort(order[count:])
    x = np.concatenate([_feature(path, name, columns[name], train) for name in chosen], axis=1)
    owner = number_clients(columns[client][train]) if client else None
    rows = None if owner is None else [np.flatnonzero(owner == k).tolist() for k in range(int(owner.max()) + 1)]
    classes = None if y.dtype.kind == "f" else int(y.max()) + 1
    return Dataset.from_arrays(x[train], y[train], x[test], y[test], rows, path.stem, classes)


def _read_columns(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a file by name."""
    from pyarrow import csv, parquet

    readers: dict[str, Any] = {".csv": csv.read_csv, ".parquet": parquet.read_table}
    if path.suffix not in readers:
        raise UserError(None, path, "must be a .csv or .parquet file")
    with explain_read_errors(path, f"a {path.suffix[1:]} file"):
        table = readers[path.suffix](path)
    if not table.num_rows:
        raise UserError(None, path, "has no rows")
    return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")


def _feature(path: Path, name: str, values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return a column as numbers [n, k]: standardised, or 0 and 1 for each category."""
    _check_complete(path, name, values)
    if values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
        spread = numbers[train].std()
        return ((numbers - numbers[train].mean()) / (spread if spread > 0 else 1.0))[:, None]
    categories = np.unique(values.astype(str))
    if len(categories) > MAX_CATEGORIES:
        problem = f"column '{name}' has {len(categories)} different values, at most {MAX_CATEGORIES} are possible"
        raise UserError(None, path, f"{problem}; leave it out of the features")
    return (values.astype(str)[:, None] == categories).astype(np.float64)


def _target(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """Return the target as decimal numbers, or as classes from 0."""
    _check_complete(path, name, values)
    return values if values.dtype.kind == "f" else np.unique(values, return_inverse=True)[1].astype(np.int64)


def _check_complete(path: Path, name: str, values: np.ndarray) -> None:
    """Raise UserError if a column has missing values, or values that are neither numbers nor words."""
    if values.ndim == 1:
        numbers = values.dtype.kind == "f"
        missing = [row for row, value in enumerate(values, 1) if value is None or (numbers and value != value)]
        if missing:
            problem = f"column '{name}' has no value in row {missing[0]}; fill it, or leave the column out"
            raise UserError(None, path, problem)
    if values.ndim != 1 or values.dtype.kind not in "iufbU":
        raise UserError(None, path, f"column '{name}' holds other things than numbers and words; leave it out")
