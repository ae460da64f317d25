"""A write that fails half-way keeps the file that was there before."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedflat.runs import folder
from fedflat.runs.folder import load_tensors, save_tensors, write_atomically

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


def fail_half_way(named: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Fail as save_file does on a full disk before safetensors 0.8, which has no temporary file of its own."""
    path.write_bytes(b"\0" * 100)
    raise OSError("no space left")


def test_a_failed_write_keeps_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, "new" * 1000)
    assert path.read_text() == "old"


def test_a_failed_write_keeps_the_old_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, OLD)
    monkeypatch.setattr(folder, "save_file", fail_half_way)
    with pytest.raises(OSError, match="no space left"):
        save_tensors(path, NEW)
    tensors = load_tensors(path)
    assert tensors is not None
    assert torch.equal(tensors["w"], OLD["w"])


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
