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


def test_scales_and_words_come_from_the_training_rows(tmp_path: Path) -> None:
    split = ["train"] * 40 + ["Test"] * 10
    area, city = [*range(40), *[1e6] * 10], ["Bonn", "Ulm"] * 20 + ["Oslo"] * 10
    path = write(tmp_path / "houses.csv", area=area, city=city, price=[*range(40), *[1e6] * 10], fold=split)
    used = {"target": "price", "features": "area,city", "test_split": "fold", "task": "regression"}
    data = ff.load_table(path, **used)
    assert data.x.shape == (40, 3)
    assert (data.x_test[:, 1:] == 0).all()  # a city that no training row has
    scaled = (1e6 - np.arange(40).mean()) / np.arange(40).std()
    assert data.x_test[:, 0].tolist() == pytest.approx([scaled] * 10)
    assert data.y_test.tolist() == pytest.approx([scaled] * 10)
    assert ff.load_table(path, **used, target_scale="none").y[:3].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("target", "task", "found", "shape"),
    [
        ("rooms", "auto", "classification", (40,)),
        ("rooms", "regression", "regression", (40,)),
        (["area", "price"], "auto", "regression", (40, 2)),
        (["garden", "lift"], "auto", "multilabel", (40, 2)),
        ("garden", "multilabel", "multilabel", (40, 1)),
        ("sold", "classification", "classification", (40,)),
    ],
)
def test_targets_of_every_task(tmp_path: Path, target: object, task: str, found: str, shape: tuple[int, ...]) -> None:
    path = write(tmp_path / "houses.parquet", garden=[0, 1] * 25, lift=[True, False] * 25)
    data = ff.load_table(path, target, "area" if "area" not in target else "rooms", task=task)
    assert (data.task, tuple(data.y.shape)) == (found, shape)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "number"}, "column 'number' has 150 different whole numbers; say task=\"regression\" or class"),
        ({"target": "city", "task": "regression"}, "column 'city' has no numbers, which regression needs"),
        ({"target": "area", "task": "classification"}, "column 'area' has no classes"),
        ({"target": "number", "task": "multilabel"}, "column 'number' has no 0 and 1"),
        ({"target": "number", "task": "next-token"}, "needs tokens, which .* does not have"),
        ({"target": ["city", "number"], "task": "classification"}, "predicts one column, 2 are given"),
        ({"target": "area", "features": ["area"]}, "'area' cannot be a feature and target"),
        ({"target": "area", "test_split": "city"}, "leaves 150 training and 0 test rows"),
        ({"target": ["area", "city", "number"]}, "no column left from which to predict 'area'"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, arguments: dict, message: str) -> None:
    lines = [f"{n / 7},{n},{'Bonn' if n % 2 else 'Ulm'}" for n in range(150)]
    (tmp_path / "t.csv").write_text("\n".join(["area,number,city", *lines]))
    with pytest.raises(ff.UserError, match=message):
        ff.load_table(tmp_path / "t.csv", **arguments)


def test_empty_cells_are_missing_values_also_of_words(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,\n3,y\n")
    with pytest.raises(ff.UserError, match=r"column 'b' has no value in row 2; fill it"):
        ff.load_table(tmp_path / "t.csv", "a", task="regression", test_split=0.34)


def test_words_are_classes_and_a_column_names_the_clients(tmp_path: Path) -> None:
    data = ff.load_table(write(tmp_path / "houses.csv"), "sold", client="agent")
    assert (data.task, data.classes) == ("classification", 2)
    assert data.owner is not None
    assert set(data.owner.tolist()) == {0, 1, 2}
    assert data.test_owner is not None
    sizes = np.bincount(data.owner) + np.bincount(data.test_owner)
    assert np.bincount(data.test_owner).tolist() == np.round(0.2 * sizes).tolist()  # a share of each client
    assert data.x.shape[1] == 2 + 3 + 1  # area, rooms, three cities, price
    result = ff.run(ff.Experiment(dataset=data, rounds=1, cohort=2))
    assert result.clients == 3


def test_clients_without_training_rows_do_not_count(tmp_path: Path) -> None:
    """With a client for every row, those of the ten test rows have nothing to train on."""
    agents, fold = [f"agent {row:02}" for row in range(ROWS)], [int(row % 5 == 0) for row in range(ROWS)]
    data = ff.load_table(write(tmp_path / "houses.csv", agent=agents, fold=fold), "sold", (), "agent", "fold")
    assert data.owner is not None
    assert data.owner.tolist() == list(range(40))
    assert data.test_owner is not None
    assert data.test_owner.tolist() == [-1] * 10


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, ("prise",), r"has no column 'prise' .did you mean price.*; it has area, rooms"),
        ({}, ("price", ("aera",)), r"has no column 'aera' .did you mean area"),
        ({"area": [None] + [1.0] * (ROWS - 1)}, ("price",), "column 'area' has no value in row 1; fill it"),
        ({"city": [None] + ["x"] * (ROWS - 1)}, ("price",), "column 'city' has no value in row 1"),
        (
            {"area": [1.0, float("inf")] * (ROWS // 2)},
            ("price",),
            "column 'area' has a number in row 2 that is too",
        ),
        (
            {"price": [1.0] * (ROWS - 1) + [-1e300]},
            ("price",),
            "column 'price' has a number in row 50 that is too",
        ),
        ({"city": [[1]] * ROWS}, ("price",), "column 'city' holds dates, or other things than numbers and words"),
        ({"area": ["?", *map(str, range(ROWS - 1))]}, ("price",), r"'area' has numbers as text, and '\?' in row 1"),
        ({"area": [f"{n},5" for n in range(ROWS)]}, ("price",), "'area' has numbers as text, and '0,5' in row 1"),
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
    with pytest.raises(ff.UserError, match=r"test_split=1\.5: must be a share between 0 and 1"):
        ff.load_table(write(tmp_path / "houses.csv"), "price", test_split=1.5)


def test_few_numbers_among_words_are_categories(tmp_path: Path) -> None:
    floors = ["1", "2", "3", "roof"] * (ROWS // 4) + ["1", "2"]
    assert ff.load_table(write(tmp_path / "houses.csv", city=floors), "price", "city").x.shape[1] == 4
