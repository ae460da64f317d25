"""Tables: numbers standardised by the training rows, categories as 0 and 1, classes or numbers as targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import fedflat as ff

ROWS = 50


def write(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "area": rng.normal(80, 20, ROWS),
        "rooms": rng.integers(1, 6, ROWS),
        "city": rng.choice(["Bonn", "Köln", "Ulm"], ROWS),
        "price": rng.normal(size=ROWS),
        "sold": rng.choice(["yes", "no"], ROWS),
        "agent": rng.choice(["a", "b", "c"], ROWS),
    }
    columns |= changes
    table = pa.table({name: pa.array(list(v)) for name, v in columns.items() if v is not None})
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_regression_on_named_columns(tmp_path: Path, suffix: str) -> None:
    data = ff.load_table(write(tmp_path / f"houses{suffix}"), "price", ("area", "rooms", "city"))
    assert (data.task, data.classes, data.name) == ("regression", 1, "houses")
    assert data.x.shape == (40, 5)
    assert data.x_test.shape == (10, 5)
    assert data.x[:, :2].mean(0).abs().max() < 1e-6
    assert (data.x[:, :2].std(0, unbiased=False) - 1).abs().max() < 1e-5
    assert (data.x[:, 2:].sum(1) == 1).all()


def test_words_are_classes_and_a_column_names_the_clients(tmp_path: Path) -> None:
    data = ff.load_table(write(tmp_path / "houses.csv"), "sold", client="agent")
    assert (data.task, data.classes) == ("classification", 2)
    assert data.owner is not None
    assert set(data.owner.tolist()) == {0, 1, 2}
    assert data.x.shape[1] == 2 + 3 + 1  # area, rooms, three cities, price
    result = ff.run(ff.Experiment(dataset=data, rounds=1, cohort=2))
    assert result.clients == 3


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, ("prise",), r"has no column 'prise' .did you mean price.*; it has area, rooms"),
        ({}, ("price", ("aera",)), r"has no column 'aera' .did you mean area"),
        ({"area": [None] + [1.0] * (ROWS - 1)}, ("price",), "column 'area' has no value in row 1; fill it"),
        ({"city": [None] + ["x"] * (ROWS - 1)}, ("price",), "column 'city' has no value in row 1"),
        ({"city": [[1]] * ROWS}, ("price",), "column 'city' holds other things than numbers and words"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, changes: dict, arguments: tuple, message: str) -> None:
    with pytest.raises(ff.UserError, match=message):
        ff.load_table(write(tmp_path / "houses.parquet", **changes), *arguments)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match=r"must be a \.csv or \.parquet file"):
        ff.load_table(tmp_path / "houses.xlsx", "price")
    with pytest.raises(ff.UserError, match=r"houses\.csv"):
        ff.load_table(tmp_path / "houses.csv", "price")
    with pytest.raises(ff.UserError, match=r"test_share=1\.5: must be between 0 and 1"):
        ff.load_table(write(tmp_path / "houses.csv"), "price", test_share=1.5)
