"""Files that cannot be read, or would be read for ever, are refused in one line and at once."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedflat.cli import main
from fedflat.data.prepare import prepare_dataset
from fedflat.errors import UserError


def png(value: int = 0) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(data, "png")
    return data.getvalue()


def images(folder: Path) -> Path:
    for part in ("train/a", "train/b", "test/a", "test/b"):
        (folder / part).mkdir(parents=True)
        (folder / part / "0.png").write_bytes(png())
    return folder


def refused(name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that a run on the data is refused in one line, with exit code 2."""
    words = ["run", "fedavg", "--rounds", "1", "--clients", "2", "--cohort", "2", "--model", "mlp"]
    assert main([*words, "--dataset", name, "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
    assert len(err) < 700


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))


STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["train/a/1.png", "test/b/0.png", "clients.json"])
def test_pipes_and_devices_among_images(kind: str, name: str, tmp_path: Path, capsys) -> None:
    folder = images(tmp_path / "data")
    (folder / name).unlink(missing_ok=True)
    STRANGE[kind](folder / name)
    refused(f"folder:{folder}", "is not a regular file", tmp_path, capsys)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_among_texts(kind: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text of some length")
    STRANGE[kind](tmp_path / "texts" / "b.txt")
    refused(f"text:{tmp_path / 'texts'}", "b.txt: is not a regular file", tmp_path, capsys)


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("option", ["--availability", "--client-settings"])
def test_pipes_and_devices_as_files_about_clients(option: str, kind: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "clients.csv"
    STRANGE[kind](file)
    assert main(["run", "fedavg", option, str(file), "--resume", "--out", str(tmp_path / "run")]) == 2
    assert f"{option} {file}: is not a regular file" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_prepared_file(tmp_path: Path, capsys) -> None:
    (tmp_path / "cache").mkdir()
    os.mkfifo(tmp_path / "cache" / "cifar10.safetensors")
    refused("cifar10", "not a prepared data set (not a regular file)", tmp_path, capsys)


def test_a_pipe_among_published_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    os.mkfifo(tmp_path / "train-labels-idx1-ubyte")
    with pytest.raises(UserError, match="is not a regular file"):
        prepare_dataset("mnist", tmp_path, tmp_path / "cache", progress=False)


def write_parquet(folder: Path, rows: list[object], labels: list[object]) -> None:
    from pyarrow import parquet, table

    folder.mkdir()
    parquet.write_table(table({"image": rows, "label": labels}), folder / "train.parquet")
    parquet.write_table(table({"image": [png()], "label": [0]}), folder / "test.parquet")


BAD_ROWS = {
    "no image": ([png(), None], [0, 1], "row 1"),
    "half an image": ([png(), png()[:40]], [0, 1], "row 1"),
    "text": ([png(), b"hello"], [0, 1], "row 1"),
    "no label": ([png(), png()], [0, None], "column label"),
    "label of text": ([png(), png()], ["a", "b"], "column label"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_row_that_cannot_be_read(kind: str, tmp_path: Path, capsys) -> None:
    rows, labels, problem = BAD_ROWS[kind]
    write_parquet(tmp_path / "data", rows, labels)
    refused(f"parquet:{tmp_path / 'data'}", problem, tmp_path, capsys)


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of that shape, without the array."""
    data = io.BytesIO()
    np.lib.format.write_array_header_1_0(data, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return data.getvalue()


def write_npz(path: Path, x: bytes) -> None:
    arrays = {"y": np.zeros(4, np.int64), "x_test": np.zeros((2, 1, 8, 8), np.uint8), "y_test": np.zeros(2, np.int64)}
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x)


def test_an_array_that_says_it_is_larger_than_it_is(tmp_path: Path, capsys) -> None:
    write_npz(tmp_path / "data.npz", npy_header((10**9, 1, 1000, 1000)) + b"\0" * 100)
    refused(f"npz:{tmp_path / 'data.npz'}", "array x should have 1,000,000,000,000,000 bytes", tmp_path, capsys)


def test_arrays_that_do_not_fit_into_memory(tmp_path: Path, monkeypatch, capsys) -> None:
    write_npz(tmp_path / "data.npz", npy_header((10**6, 1, 8, 8)) + b"\0" * 64 * 10**6)
    monkeypatch.setattr("fedflat.data.published_formats.free_host_memory", lambda: 10**7)
    refused(f"npz:{tmp_path / 'data.npz'}", "its arrays need 0.1 GB, and 0.0 GB of memory are free", tmp_path, capsys)


def test_published_images_that_say_there_are_more(tmp_path: Path) -> None:
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 3]))
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + b"\x7f\xff\xff\xff" * 3)
    with pytest.raises(UserError, match="do not fit into memory"):
        prepare_dataset("mnist", tmp_path, tmp_path / "cache", progress=False)


def test_a_configuration_without_an_end(capsys) -> None:
    assert main(["run", "--config", "/dev/zero"]) == 2
    assert "more than 1,000,000 characters" in capsys.readouterr().err
