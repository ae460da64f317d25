"""What fedflat data list, prepare and show print and draw."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image

from fedflat.cli import main
from fedflat.cli.data import (
    ShowOptions,
    draw_partition,
    prepare_and_print,
    print_datasets,
    show_partition,
    stacked_columns,
)
from fedflat.errors import UserError
from fedflat.runs.experiment import Setting

PARTITIONS = Path(__file__).parents[2] / "docs" / "data-partitions.md"


def write_tissuemnist(root):
    x = np.zeros((3, 28, 28), np.uint8)
    arrays = {f"{split}_images": x for split in ("train", "val", "test")} | {
        f"{split}_labels": np.array([[0], [1], [7]]) for split in ("train", "val", "test")
    }
    np.savez(root / "tissuemnist.npz", **arrays)
    return root


def test_prepare_and_list(tmp_path, capsys):
    prepare_and_print("tissuemnist", write_tissuemnist(tmp_path), tmp_path)
    assert "tissuemnist: 6 training and 3 test images, 8 classes, read from npz" in capsys.readouterr().out
    print_datasets(tmp_path)
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["tissuemnist"][1:5] == ["6", "3", "1x28x28", "8"]
    assert lines["cifar10"][1] == "-"
    assert "landmarks-user-160k" in lines


def test_show_prints_each_client_and_draws(tmp_path, capsys):
    show_partition("digits", "shards", 20, 0.1, 2, 0, tmp_path / "a.png")
    out = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [int(row[0]) for row in rows] == list(range(20))
    assert sum(int(row[1]) for row in rows) == 1437
    assert all(int(row[2]) <= 2 for row in rows)
    assert Image.open(tmp_path / "a.png").size[0] > 500
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_show_summarises_many_clients(tmp_path, capsys):
    show_partition("digits", "iid", 100, 0.1, 2, 0, tmp_path / "a.png")
    out = capsys.readouterr().out
    assert "of 100 clients" in out
    assert [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")] == [
        "smallest",
        "median",
        "mean",
        "largest",
    ]


@pytest.mark.parametrize("flags", [[], ["--partition", "auto"], ["--partition", "natural"]])
def test_show_draws_natural_clients(tmp_path, flags, capsys):
    x = np.zeros((4, 8, 8), np.uint8)
    arrays = {
        "x": x,
        "y": np.array([0, 1, 1, 0]),
        "x_test": x[:1],
        "y_test": np.array([0]),
        "client": np.array([5, 5, 9, 9]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    assert main(["data", "show", f"npz:{tmp_path / 'a.npz'}", *flags, "--out", str(tmp_path / "a.png")]) == 0
    assert "natural, 2 clients" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("shape", [(100, 10), (40, 100), (1262, 2028)])
def test_any_number_of_clients_and_classes_can_be_drawn(tmp_path, shape):
    counts = np.random.default_rng(0).poisson(0.1, shape) + np.eye(*shape, dtype=int)
    draw_partition(counts, "many", tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) >= min(shape[1], 40)


def test_columns_are_as_high_as_the_counts():
    drawn = stacked_columns(np.array([[2, 0, 4], [0, 3, 0]]), 12)
    assert drawn[:, 0].tolist() == [0] * 4 + [2] * 8
    assert drawn[:, 1].tolist() == [1] * 6 + [None] * 6


@pytest.mark.parametrize("out", ["a.jpg", "no/such/folder/a.png"])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path, out):
    with pytest.raises(UserError, match=r'out=".*": must be a .png file in a folder that exists'):
        show_partition("digits", "iid", 10, 0.1, 2, 0, tmp_path / out)


def test_run_and_show_and_the_docs_have_the_same_partitions():
    named = re.findall(r"^\| `(\w[\w-]*)`(?: \(default\))? \|", PARTITIONS.read_text(encoding="utf-8"), re.M)
    assert named == [*get_args(get_type_hints(Setting)["partition"])]
    assert named == [*get_args(get_type_hints(ShowOptions)["partition"])]
    assert Setting.partition == ShowOptions.partition == "auto"


def test_the_commands_about_a_long_tail_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = PARTITIONS.read_text(encoding="utf-8").partition("## A long tail")[2]
    show, run = (line.split()[1:] for line in section.split("```")[1].strip().splitlines())
    assert main(show) == 0
    assert "digits, lda-equal" in capsys.readouterr().out
    assert main([*run, "--rounds", "1"]) == 0
