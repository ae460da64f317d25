"""Hugging Face parquet: files train* and test* with encoded images, labels and optionally clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedflat.data.arrays import labels
from fedflat.data.folders import number
from fedflat.data.images import Named, chunks, form_of, reading
from fedflat.data.prepared import CHUNK, Source, Split
from fedflat.errors import UserError

IMAGE, LABEL, CLIENT = ("image", "img"), ("label", "fine_label"), ("client",)


def files(root: Path, half: str) -> list[Path]:
    """The parquet files of one half in `root` or one level below, in order."""
    return sorted(root.glob(f"{half}*.parquet")) or sorted(root.glob(f"*/{half}*.parquet"))


def parquet(root: Path) -> Source:
    """train*.parquet and test*.parquet below `root`."""
    halves = [files(root, half) for half in ("train", "test")]
    for half, paths in zip(("train", "test"), halves, strict=True):
        if not paths:
            raise UserError(f"{root}: no file {half}*.parquet")
    if (first := next(_images(halves[0]), None)) is None:
        raise UserError(f"{halves[0][0]}: the file has no rows")
    form = form_of(*first)
    train, test = (Split(_labels(paths), chunks(_images(paths), form)) for paths in halves)
    return Source(train._replace(owner=_owner(halves[0])), test, "parquet, jpeg" if form.jpeg else "parquet")


def _column(path: Path, names: Sequence[str]) -> str | None:
    """The name the column has in this file."""
    from pyarrow.parquet import read_schema

    with reading(path, "a parquet file"):
        present = read_schema(path).names
    return next((name for name in names if name in present), None)


def _needed(path: Path, names: Sequence[str]) -> str:
    column = _column(path, names)
    if column is None:
        raise UserError(f"{path}: no column {' or '.join(names)}")
    return column


def _labels(paths: list[Path]) -> np.ndarray:
    return np.concatenate([_numbers(path, _needed(path, LABEL)) for path in paths])


def _numbers(path: Path, column: str) -> np.ndarray:
    values = _values(path, column)
    return labels(f"{path}: column {column}", values or np.empty(0, np.int64)).numpy()


def _values(path: Path, column: str) -> list:
    from pyarrow.parquet import read_table

    with reading(path, "a parquet file"):
        return read_table(path, columns=[column])[column].to_pylist()


def _owner(paths: list[Path]) -> np.ndarray | None:
    """The numbered clients, where the files name them."""
    columns = [_column(path, CLIENT) for path in paths]
    if None in columns:
        return None
    return number([str(v) for path, column in zip(paths, columns, strict=True) for v in _values(path, str(column))])


def _images(paths: list[Path]) -> Iterator[Named]:
    """Row by row: the encoded image, stored as bytes or as a struct with the field bytes."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        column = _needed(path, IMAGE)
        with reading(path, "a parquet file"), ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(CHUNK, columns=[column]) for row in batch.column(0).to_pylist())
            for i, row in enumerate(rows):
                yield f"{path} row {i}", _encoded(row)


def _encoded(row: object) -> bytes:
    data = row.get("bytes") if isinstance(row, dict) else row
    if not isinstance(data, bytes):
        raise ValueError(f"an image must be bytes or a struct with bytes, not {type(data).__name__}")
    return data
