"""Tables from CSV and parquet files: columns of numbers and of words as samples, one or several columns as the target.

Columns of numbers are standardised by the mean and the standard deviation of the training rows. Columns of words become
one column of 0 and 1 for each word that occurs in the training rows. Missing values are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedflat.core.random import hash_words, purpose_key
from fedflat.core.state import checksum
from fedflat.core.tasks import Multilabel, find_task
from fedflat.data.dataset import Dataset, dataset_tensors
from fedflat.data.image_files import check_regular, explain_read_errors, number_clients, number_test_clients
from fedflat.errors import UserError, mention, near_miss, shorten

MAX_CATEGORIES = 1000  # of one column; more are taken for a mistake, such as a column of names
MANY_NUMBERS = 100  # more different whole numbers in a target may be classes or not
TEST_WORDS = ("test", "1", "true", "yes")  # what a column of the test split says of a test row, in any case
MANY_WORDS_OF_NUMBERS = 20  # more different words that are numbers are no categories
Columns = dict[str, np.ndarray]


class TableColumns(NamedTuple):
    """Which columns of a table are used, and for what.

    Args:
        target: the columns to predict.
        features: the columns to predict them from; all others unless given.
        client: the column that names each row's client, "" if a partition assigns the rows.
        test_split: the share of rows that are test samples, of each client if there are some, drawn by a hash of the
            rows' numbers; or a column that says "test", 1 or true in these rows.
        task: what is learned, as the option `task`; "auto" goes by the target.
        target_scale: "standard" to standardise the numbers of a regression, "none" to use them as they are.
    """

    target: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    client: str = ""
    test_split: float | str = 0.2
    task: Any = "auto"
    target_scale: str = "standard"


def load_table(
    path: str | Path,
    target: str | Sequence[str],
    features: str | Sequence[str] = (),
    client: str | None = None,
    test_split: float | str = 0.2,
    task: Any = "auto",
    target_scale: str = "standard",
) -> Dataset:
    """Return the rows of a table as a data set.

    With task "auto", a target of decimal numbers is a regression; whole numbers, words, and true or false are classes,
    numbered in their order; several columns of 0 and 1 are labels.

    Args:
        path: a .csv file with a header, or a .parquet file.
        target: the column to predict, or several.
        features: the columns to predict it from; all that are not used otherwise unless given.
        client: the column that names each row's client, None if a partition assigns the rows.
        test_split: the share of rows that are test samples, of each client if `client` is given; or a column that says
            "test", 1 or true in these rows.
        task: "classification", "regression", "multilabel" or a task of your own; "auto" goes by the target.
        target_scale: "standard" divides the numbers of a regression by their standard deviation, after subtracting
            their mean, both of the training rows; "none" leaves them.

    Raises:
        UserError: the file cannot be read, a column is missing, or has values that cannot be used.
    """
    columns = TableColumns(_names(target), _names(features), client or "", test_split, task, target_scale)
    return dataclasses.replace(read_table(Path(path), columns), fingerprint="")


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def read_table(path: Path, used: TableColumns, name: str = "") -> Dataset:
    """Return the rows of a table as a data set, with the checksum of what was read as its fingerprint.

    Args:
        path: the file.
        used: which columns are used, and for what.
        name: what reports call the data set; the file's name unless given.
    """
    columns = _read_columns(path)
    target, features = _used_columns(path, used, columns)
    test = _test_rows(path, used, columns)
    train = ~test
    x = np.concatenate([_feature(path, each, columns[each], train) for each in features], axis=1)
    y = _target(path, target, columns, used.task)
    if y.dtype.kind == "f" and used.target_scale == "standard":
        y = _standardised(y, train)
    classes = int(y.max()) + 1 if y.dtype.kind != "f" and y.ndim == 1 else None
    data = Dataset.from_arrays(x[train], y[train], x[test], y[test], name=name or path.stem, classes=classes)
    if used.client:
        data = _with_clients(data, columns[used.client], train)
    return dataclasses.replace(data, fingerprint=f"{checksum(dataset_tensors(data)):08x}")


def _used_columns(path: Path, used: TableColumns, columns: Columns) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the target's columns and of the features; raise UserError if a column cannot be used."""
    target, features = _listed_names(used.target, columns), _listed_names(used.features, columns)
    if not target:
        problem = f"say which column to predict with {mention('target_column')}; it has {_list(columns)}"
        raise UserError(None, path, problem)
    special = [
        *target,
        *([used.client] if used.client else []),
        *([used.test_split] if isinstance(used.test_split, str) else []),
    ]
    for name in (*special, *features):
        if name not in columns:
            raise UserError(None, path, f"has no column '{name}'{near_miss(name, columns)}; it has {_list(columns)}")
        _check_complete(path, name, columns[name])
    if twice := [name for name in features if name in special]:
        raise UserError(None, path, f"column '{twice[0]}' cannot be a feature and target, client or test split too")
    features = features or tuple(name for name in columns if name not in special)
    if not features:
        raise UserError(None, path, f"has no column left from which to predict '{target[0]}'")
    return target, features


def _read_columns(path: Path) -> Columns:
    """Return the columns of a file by name. Empty cells, NA and null are missing, which are None or NaN."""
    from pyarrow import csv, parquet

    if path.suffix not in (".csv", ".parquet"):
        raise UserError(None, path, "must be a .csv or .parquet file")
    with explain_read_errors(path, f"a {path.suffix[1:]} file"):
        if path.suffix == ".csv":
            table = csv.read_csv(check_regular(path), convert_options=csv.ConvertOptions(strings_can_be_null=True))
        else:
            table = parquet.read_table(check_regular(path))
        if len(set(table.column_names)) < len(table.column_names):
            raise UserError(None, path, "two columns have the same name")
        columns = {name: np.asarray(table[name].to_pylist()) for name in table.column_names}
    if not table.num_rows:
        raise UserError(None, path, "has no rows")
    return columns


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(map(shorten, shown[:12])) + (", …" if len(shown) > 12 else "")


def _listed_names(names: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """Return names of columns; area,rooms is area and rooms, unless a column is called so."""
    return tuple(part for name in names for part in ([name] if name in columns else name.split(",")))


def _test_rows(path: Path, used: TableColumns, columns: Columns) -> np.ndarray:
    """Return which rows are test samples, bool [n]; raise UserError if all or none are."""
    test, rows = used.test_split, len(next(iter(columns.values())))
    if isinstance(test, str):
        chosen = np.array([value == 1 or str(value).lower() in TEST_WORDS for value in columns[test].tolist()])
    elif not 0 < test < 1:
        raise UserError("test_split", test, "must be a share between 0 and 1, or the name of a column")
    else:
        chosen = _draw_rows(test, number_clients(columns[used.client]) if used.client else np.zeros(rows, np.int64))
    if not 0 < chosen.sum() < rows:
        known = f"; test rows say {', '.join(TEST_WORDS)}" if isinstance(test, str) else ""
        problem = f"leaves {rows - chosen.sum()} training and {chosen.sum()} test rows of {path}{known}"
        raise UserError("test_split", test, problem)
    return chosen


def _draw_rows(share: float, group: np.ndarray) -> np.ndarray:
    """Return a share of the rows of each group, rounded, by a hash of the row's number: bool [n]."""
    keys = hash_words(purpose_key("table"), torch.arange(len(group))).numpy()
    order, sizes = np.lexsort((keys, group)), np.bincount(group)
    place = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each row within its group
    chosen = np.empty(len(group), bool)
    chosen[order] = place < np.round(share * np.repeat(sizes, sizes))
    return chosen


def _feature(path: Path, name: str, values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return a column as numbers [n, k]: standardised, or 0 and 1 for each word of the training rows."""
    _check_complete(path, name, values)
    if values.dtype.kind in "iuf":
        return _standardised(values.astype(np.float64), train)[:, None]
    words = values.astype(str)
    _check_hidden_numbers(path, name, words)
    categories = np.unique(words[train])
    if len(categories) > MAX_CATEGORIES:
        problem = f"column '{name}' has {len(categories)} different values, at most {MAX_CATEGORIES} are possible"
        raise UserError(None, path, f"{problem}; leave it out of the features")
    return (words[:, None] == categories).astype(np.float64)


def _check_hidden_numbers(path: Path, name: str, words: np.ndarray) -> None:
    """Raise UserError if a column of words is one of numbers: all but a tenth are, and they are many different ones."""
    others = [row for row, word in enumerate(words, 1) if not _is_number(word)]
    if 10 * len(others) <= len(words) and len(np.unique(words)) > MANY_WORDS_OF_NUMBERS:
        row = others[0] if others else 1
        problem = f"column '{name}' has numbers as text, and '{shorten(words[row - 1])}' in row {row}"
        advice = "write plain numbers such as 82.5 and fill in what is missing, or leave the column out"
        raise UserError(None, path, f"{problem}; {advice}")


def _is_number(word: str) -> bool:
    """Return whether a word is a number, also one with a decimal comma."""
    try:
        float(word.replace(",", "."))
    except ValueError:
        return False
    return True


def _standardised(numbers: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return (numbers − mean) / std with mean and std of the training rows; a constant column becomes 0 there."""
    spread = numbers[train].std(0)
    return (numbers - numbers[train].mean(0)) / np.where(spread > 0, spread, 1.0)


def _target(path: Path, names: Sequence[str], columns: Columns, task: Any) -> np.ndarray:
    """Return the target: float64 numbers [n] or [n, k], classes from 0 [n], or labels of 0 and 1 [n, k]."""
    values = [columns[name] for name in names]
    kind = _kind(path, names, values) if task == "auto" else _kind_of_task(path, task)
    wanted = {"regression": "numbers", "multilabel": "0 and 1", "classification": "classes"}[kind]
    for name, column in zip(names, values, strict=True):
        if not _fits(column, kind):
            raise UserError(None, path, f"column '{name}' has no {wanted}, which {kind} needs as its target")
    if kind == "regression":
        numbers = np.stack(values, axis=1).astype(np.float64)
        return numbers[:, 0] if len(names) == 1 else numbers
    if kind == "multilabel":
        return np.stack(values, axis=1).astype(np.int64)
    if len(names) > 1:
        raise UserError(None, path, f"classification predicts one column, {len(names)} are given: {_list(names)}")
    return np.unique(values[0], return_inverse=True)[1].astype(np.int64)


def _kind(path: Path, names: Sequence[str], values: Sequence[np.ndarray]) -> str:
    """Return the task that "auto" stands for; raise UserError if whole numbers could as well be classes as numbers."""
    if all(column.dtype.kind == "f" for column in values):
        return "regression"
    if len(values) > 1:
        return "multilabel" if all(_fits(column, "multilabel") for column in values) else "regression"
    different = len(np.unique(values[0]))
    if values[0].dtype.kind in "iu" and different > MANY_NUMBERS:
        choice = f"{mention('task', 'regression')} or classification"
        raise UserError(None, path, f"column '{names[0]}' has {different} different whole numbers; say {choice}")
    return "classification"


def _kind_of_task(path: Path, task: Any) -> str:
    """Return how the targets of a task are read: "classification", "multilabel" or "regression"."""
    found = find_task(task)
    if found.name == "next-token":
        raise UserError("task", found.name, f"needs tokens, which {path} does not have; a table has numbers and words")
    if found.class_scores:
        return "classification"
    return "multilabel" if issubclass(found, Multilabel) else "regression"


def _fits(column: np.ndarray, kind: str) -> bool:
    """Return whether a column can be the target of a kind of task."""
    if kind == "regression":
        return column.dtype.kind in "iuf"
    if kind == "multilabel":
        return column.dtype.kind in "iufb" and bool(np.isin(column, (0, 1)).all())
    return column.dtype.kind != "f" or bool((column == np.round(column)).all())


def _with_clients(data: Dataset, names: np.ndarray, train: np.ndarray) -> Dataset:
    """Return the data set with its rows' clients, numbered by their sorted names; clients without training rows: -1."""
    owner, test_owner = number_clients(names[train]), number_test_clients(names[~train], names[train])
    return dataclasses.replace(data, owner=torch.from_numpy(owner), test_owner=torch.from_numpy(test_owner))


def _check_complete(path: Path, name: str, values: np.ndarray) -> None:
    """Raise UserError if a column has missing values, or values that are neither numbers nor words."""
    if values.ndim == 1:
        numbers = values.dtype.kind == "f"
        missing = [row for row, value in enumerate(values, 1) if value is None or (numbers and value != value)]
        if missing:
            problem = f"column '{name}' has no value in row {missing[0]}; fill it, or leave the column out"
            raise UserError(None, path, problem)
        if numbers and len(too_large := np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)):
            problem = f"column '{name}' has a number in row {too_large[0] + 1} that is too large for 32 bits"
            raise UserError(None, path, f"{problem}; correct it, or leave the column out")
    if values.ndim != 1 or values.dtype.kind not in "iufbU":
        problem = f"column '{name}' holds dates, or other things than numbers and words"
        raise UserError(None, path, f"{problem}; leave it out, by naming the others with {mention('feature_columns')}")
