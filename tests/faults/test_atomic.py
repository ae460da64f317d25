"""A write that fails half-way leaves the file that was there before."""

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
    """As on a full disk: what is written after `size` bytes of a file is an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def torn(named: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """What save_file does on a full disk where it has no temporary file of its own, as before safetensors 0.8."""
    path.write_bytes(b"\0" * 100)
    raise OSError("no space left")


def test_text_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, "new" * 1000)
    assert path.read_text() == "old"


def test_tensors_survive_a_torn_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, OLD)
    monkeypatch.setattr(folder, "save_file", torn)
    with pytest.raises(OSError, match="no space left"):
        save_tensors(path, NEW)
    found = load_tensors(path)
    assert found is not None
    assert torch.equal(found["w"], OLD["w"])


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    """Not one of safetensors, which the command line would not know."""
    path = tmp_path / "state.safetensors"
    save_tensors(path, OLD)
    with largest_file(1000), pytest.raises(OSError, match=r"state\.safetensors: cannot be written .*too large"):
        save_tensors(path, NEW)
    assert load_tensors(path) is not None
    assert list(tmp_path.iterdir()) == [path]


def test_a_torn_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, "new" * 1000)
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, "new")
    save_tensors(tmp_path / "state.safetensors", NEW)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["result.json", "state.safetensors"]
