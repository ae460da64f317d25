"""Files are replaced as a whole: a write that fails, a killed process and a power loss keep the file that was there."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from fedflat.cli import main
from fedflat.files import disk_failed, replace_file
from fedflat.report.matplotlib_figures import _save
from fedflat.runs.checkpoint import load_tensors, save_tensors
from fedflat.runs.folder import RunFolder, write_atomically

OLD, NEW = {"w": torch.zeros(3)}, {"w": torch.ones(500)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writing more than `size` bytes to a file an error, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_keeps_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with largest_file(1000), pytest.raises(OSError, match=r"too large: '.*result.json'"):
        write_atomically(path, "new" * 1000)
    assert path.read_text() == "old"


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """Not a SafetensorError, which the command line would show with a traceback."""
    path = tmp_path / "state.safetensors"
    save_tensors(path, OLD)
    with largest_file(1000), pytest.raises(OSError, match=r"state\.safetensors: cannot be written .*too large"):
        save_tensors(path, NEW)
    assert load_tensors(path) is not None
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, "new" * 1000)
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, "new")
    save_tensors(tmp_path / "state.safetensors", NEW)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["result.json", "state.safetensors"]


def test_every_type_of_tensor_is_read_back(tmp_path: Path) -> None:
    types = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
    tensors = {str(dtype): torch.tensor([[0, 1, 1]]).to(dtype) for dtype in types}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "strided": torch.arange(6).reshape(2, 3).T}
    save_tensors(tmp_path / "state.safetensors", tensors, "rounds: 1")
    for read in (load_tensors(tmp_path / "state.safetensors"), load_file(tmp_path / "state.safetensors")):
        assert read is not None
        assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def record(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record calls of the system in order: what is fsynced or renamed, by name."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        calls.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
        fsync(descriptor)

    def recorded_replace(old: Path, new: Path) -> None:
        calls.append(f"rename {Path(old).suffix} to {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    return calls


@pytest.mark.parametrize("name", ["state.safetensors", "config.yaml"])
def test_bytes_then_name_then_folder_reach_the_disk(tmp_path: Path, name: str, monkeypatch) -> None:
    calls = record(monkeypatch)
    save_tensors(tmp_path / name, NEW) if name.startswith("state") else write_atomically(tmp_path / name, "new")
    assert calls == ["fsync .tmp", f"rename .tmp to {name}", "fsync "], "the last is the folder, which has no suffix"


def test_the_names_of_new_folders_reach_the_disk(tmp_path: Path, monkeypatch) -> None:
    """A run in runs/first/fedavg, of which nothing exists: each of the three folders is named in the one above."""
    synced: list[Path] = []
    monkeypatch.setattr("fedflat.runs.folder.sync_folder", synced.append)
    RunFolder(tmp_path / "runs" / "first" / "fedavg", "rounds: 1", resume=False).close()
    assert {tmp_path, tmp_path / "runs", tmp_path / "runs" / "first"} <= {*synced}


def test_a_disk_that_fails_when_bytes_are_forced_keeps_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, OLD)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        save_tensors(path, NEW)
    assert (load_tensors(path) or {})["w"].shape == OLD["w"].shape
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path, monkeypatch) -> None:
    """Whoever could guess the name could let a run write anywhere; here the first guess is right."""
    victim, names = tmp_path / "victim", iter(["guessed", "other"])
    victim.write_text("precious")
    monkeypatch.setattr("fedflat.files.secrets.token_hex", lambda size: next(names))
    (tmp_path / ".result.json.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "result.json", "{}")
    assert victim.read_text() == "precious"


def test_links_that_guess_the_temporary_file_of_a_picture(tmp_path: Path, monkeypatch) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in (".toy.png.tmp", f".digits.png.{os.getpid()}", ".loss.pdf", ".loss.png"):
        (tmp_path / name).symlink_to(precious)
    monkeypatch.chdir(tmp_path)
    assert main(["toy", "--out", "toy.png"]) == 0
    assert main(["data", "show", "digits", "--out", "digits.png"]) == 0
    _save(Figure(), tmp_path, "loss")
    assert precious.read_text() == "mine"
    assert {"toy.png", "digits.png", "loss.pdf", "loss.png"} <= {path.name for path in tmp_path.iterdir()}


def test_names_of_temporary_files_differ(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with replace_file(tmp_path / "file") as file:
            names |= {path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"}
            file.write(b"x")
    assert len(names) == 2


def test_leftovers_of_killed_processes_are_removed_and_files_in_use_are_not(tmp_path: Path) -> None:
    leftover = tmp_path / ".file.0123.tmp"
    leftover.write_text("half")
    with replace_file(tmp_path / "file") as outer:
        assert not leftover.exists()
        outer.write(b"outer")
        with replace_file(tmp_path / "file") as inner:
            inner.write(b"inner")
    assert (tmp_path / "file").read_text() == "outer"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_are_as_readable_as_the_user_wants(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_what_counts_as_a_failing_disk() -> None:
    def raised_from(number: int) -> ValueError:
        try:
            try:
                raise OSError(number, "trouble")
            except OSError:
                raise ValueError("in words") from None
        except ValueError as error:
            return error

    assert disk_failed(raised_from(28))
    assert not disk_failed(raised_from(13))
