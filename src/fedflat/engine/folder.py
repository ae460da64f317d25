"""A run's folder: config.yaml, metrics.jsonl, checkpoint/, result.json. Every file is whole or absent."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedflat.errors import UserError
from fedflat.options import flag, show


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name in the same folder, then rename; what cannot be written whole leaves nothing."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; a line torn by a crash ends it."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class OtherRun(UserError):
    """The folder `path` belongs to the configuration `stored`, not to the `given` one."""

    def __init__(self, path: Path, stored: str, given: str) -> None:
        found = "; ".join(differences(stored, given))
        super().__init__(f"--out {path}: belongs to another configuration ({found}); choose another folder")
        self.path = path


class RunFolder:
    """Opens a folder for one run; `resume` allows, and is needed for, an unfinished run of the same config.

    A folder in which nothing was trained yet belongs to nobody.
    """

    def __init__(self, path: Path, config: str, resume: bool) -> None:
        self.path, self.config = path, config
        self.checkpoint, self.metrics = path / "checkpoint" / "state.safetensors", path / "metrics.jsonl"
        self._refuse(resume)
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._lock()
            write_atomically(path / "config.yaml", config)
        except OSError as error:
            raise UserError(f"--out {path}: cannot be written ({error.strerror or error})") from None

    def _refuse(self, resume: bool) -> None:
        """Say why this folder cannot be used, changing nothing."""
        existing = self.path / "config.yaml"
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file, must be a folder")
        if (self.path / "result.json").exists():
            raise UserError(f"--out {self.path}: holds a complete run; choose another folder")
        if not existing.exists() or not (self.checkpoint.exists() or read_rows(self.metrics)):
            return
        if not same_run(stored := existing.read_text(encoding="utf-8"), self.config):
            raise OtherRun(self.path, stored, self.config)
        if not resume:
            raise UserError(f"--out {self.path}: holds an unfinished run; add --resume or choose another folder")

    def _lock(self) -> None:
        """Two processes never train in one folder; the lock ends with the process."""
        self._lock_file = open(self.path / "checkpoint" / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"--out {self.path}: another process is training in this folder") from None

    def close(self) -> None:
        """Let others use the folder."""
        self._lock_file.close()

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append metrics."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Drop metrics of rounds after the checkpoint's; returns those kept."""
        rows = [row for row in read_rows(self.metrics) if row["round"] <= round]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint."""
        save_tensors(self.checkpoint, tensors)

    def load(self) -> dict[str, Tensor] | None:
        """The checkpoint's tensors, None where there is none yet."""
        if not self.checkpoint.exists():
            return None
        named = load_tensors(self.checkpoint)
        if named is None:
            raise UserError(f"--out {self.path}: its checkpoint is damaged ({self.checkpoint}); nothing was changed")
        return named

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run complete."""
        write_atomically(self.path / "result.json", json.dumps(result, indent=2) + "\n")


def same_run(one: str, other: str) -> bool:
    """Whether two configurations agree in all but the engine: any engine can take over from another."""
    first, second = ([line for line in text.splitlines() if not line.startswith("engine:")] for text in (one, other))
    return first == second


def differences(stored: str, given: str) -> list[str]:
    """The options in which two configurations disagree: ["--lr: 0.1 in the folder, 0.05 given"]."""
    try:
        there, here = (_named(yaml.safe_load(text)) for text in (stored, given))
    except (yaml.YAMLError, AttributeError):  # damaged, or no mapping
        return ["its config.yaml cannot be read"]
    names = [name for name in here | there if there.get(name) != here.get(name) and name != "--engine"]
    return [f"{name}: {_words(there, name)} in the folder, {_words(here, name)} given" for name in names]


def _words(options: Mapping[str, Any], name: str) -> str:
    """An option's value as it is typed."""
    return " ".join(show(options.get(name)))


def _named(config: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Options by their flags; those of a method inside another by the way that leads to it."""
    named: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            named |= _named(value, f"{of}{key} ")
        else:
            named[of.strip() if key == "name" else of.removeprefix("method ") + flag(key)] = value
    return named


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and their checksum to a temporary name in the same folder, then rename."""
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    temporary = path.with_suffix(".tmp")
    save_file(named, temporary, metadata={"crc": str(checksum(named))})
    os.replace(temporary, path)


def load_tensors(path: Path) -> dict[str, Tensor] | None:
    """What `save_tensors` wrote, None where the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return named if (file.metadata() or {}).get("crc") == str(checksum(named)) else None
    except (SafetensorError, OSError, ValueError):
        return None


def checksum(named: Mapping[str, Tensor]) -> int:
    """CRC-32 over names and bytes."""
    crc = 0
    for name in sorted(named):
        crc = zlib.crc32(named[name].numpy().tobytes(), zlib.crc32(name.encode(), crc))
    return crc
