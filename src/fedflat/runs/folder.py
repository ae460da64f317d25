"""A run's folder: config.yaml, metrics.jsonl, checkpoint/, result.json. Every file is whole or absent."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
import fcntl
import json
from collections.abc import Iterable, Mapping
from typing import Any
from fedflat.core.state import checksum
from fedflat.errors import UserError
from fedflat.runs.config import MAY_CHANGE, as_written, config_differences, same_run



def check_checkpoint_config(checkpoint: Path, config: str, where: str, free: Collection[str] = MAY_CHANGE) -> None:
    """Refuse a checkpoint of another configuration; one that names none, from earlier versions, is trusted."""
    with safe_open(checkpoint, "pt") as file:
        stored = file.metadata().get("config", "")
    if stored and not same_run(stored, config, free):
        found = "; ".join(config_differences(stored, config, "checkpoint", free))
        said = f"its checkpoint does not belong to this configuration ({found})"
        raise UserError(f"{where}: {said}; go back to the one that it was trained with")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], config: str = "") -> None:
    """Write tensors, the configuration they belong to and a checksum to a temporary name, then rename."""
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    temporary = path.with_suffix(".tmp")
    try:
        save_file(named, temporary, metadata={"config": config, "crc": str(checksum(named, config))})
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"{path}: cannot be written ({error})") from None


def load_tensors(path: Path) -> dict[str, Tensor] | None:
    """What `save_tensors` wrote, None where the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            known = file.metadata() or {}
            return named if known.get("crc") == str(checksum(named, known.get("config", ""))) else None
    except (SafetensorError, OSError, ValueError):
        return None


METRICS_ROW = {"round": int, "seed": int, "accuracy": float, "loss": float | None}  # of metrics.jsonl


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name in the same folder, then rename; what cannot be written whole leaves nothing."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file but for a last one that a crash tore; raises UserError for other damage."""
    *lines, torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows = [_row(line) for line in lines]
    if None in rows:
        raise UserError(f"{path}: line {rows.index(None) + 1} is damaged; restore the file")
    return [row for row in [*rows, _row(torn)] if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """The object in a line of JSON, None where there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class OtherRunError(UserError):
    """The folder `path` belongs to the configuration `stored`, not to the `given` one."""

    def __init__(self, path: Path, stored: str, given: str) -> None:
        found = "; ".join(config_differences(stored, given))
        super().__init__(f"--out {path}: belongs to another configuration ({found}); choose another folder")
        self.path = path


class RunFolder:
    """Opens a folder for one run; `resume` allows, and is needed for, an unfinished run of the same config.

    A folder in which nothing was trained yet belongs to nobody, but files that were not written here stay as they are.
    """

    def __init__(self, path: Path, config: str, resume: bool) -> None:
        self.path, self.config, self.described = path, config, path / "config.yaml"
        self.checkpoint, self.metrics = path / "checkpoint" / "state.safetensors", path / "metrics.jsonl"
        self._refuse(resume)
        written_here = self._written_here()
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._lock()
            if written_here or not self.described.exists():
                write_atomically(self.described, config)
        except OSError as error:
            raise UserError(f"--out {path}: cannot be written ({error.strerror or error})") from None

    def _refuse(self, resume: bool) -> None:
        """Say why this folder cannot be used, changing nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file, must be a folder")
        if (self.path / "result.json").exists():
            raise UserError(f"--out {self.path}: holds a complete run; choose another folder")
        if not self.described.exists():
            return self._refuse_unnamed()
        trained = bool(self._rows()) or self.checkpoint.exists()
        self._refuse_other(trained)
        if trained and not resume:
            raise UserError(f"--out {self.path}: holds an unfinished run; add --resume or choose another folder")

    def _refuse_unnamed(self) -> None:
        """Refuse what some run or other program left; a run's first file is its config.yaml."""
        for file in (self.checkpoint, self.metrics):
            if file.exists() and file.stat().st_size:
                said = f"holds {file.name} but no config.yaml that it belongs to"
                raise UserError(f"--out {self.path}: {said}; choose another folder, or restore config.yaml")

    def _refuse_other(self, trained: bool) -> None:
        """Refuse another run's configuration, or one that is a user's file."""
        if same_run(stored := self._stored(), self.config):
            return
        if trained:
            raise OtherRunError(self.path, stored, self.config)
        if not self._written_here():
            raise UserError(f"--out {self.path}: its config.yaml was not written there by a run; choose another folder")

    def _stored(self) -> str:
        return self.described.read_text(encoding="utf-8", errors="replace")

    def _written_here(self) -> bool:
        """Whether config.yaml is what an earlier run wrote into this folder."""
        return self.described.exists() and self._lock_path.exists() and as_written(self._stored())

    @property
    def _lock_path(self) -> Path:
        return self.path / "checkpoint" / ".lock"

    def _lock(self) -> None:
        """Two processes never train in one folder; the lock ends with the process."""
        self._lock_file = open(self._lock_path, "w")  # noqa: SIM115
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

    def rewind(self, round: int, evaluations: Iterable[tuple[int, int]] = ()) -> list[dict[str, Any]]:
        """Drop metrics of rounds after the checkpoint's; returns those kept, which `evaluations` (round, seed) need."""
        rows = [row for row in self._rows() if row["round"] <= round]
        there = {(row["round"], row["seed"]) for row in rows}
        if lacking := sorted({when for when, seed in evaluations if (when, seed) not in there}):
            said = f"metrics.jsonl lacks rounds up to the checkpoint's {round}, the first is round {lacking[0]}"
            raise UserError(f"--out {self.path}: {said}; restore the file or choose another folder")
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def _rows(self) -> list[dict[str, Any]]:
        """The metrics so far; refuses a file that is damaged or of something else."""
        try:
            rows = read_metrics(self.metrics)
        except UserError as error:
            raise UserError(f"--out {self.path}: {error} or choose another folder") from None
        if not all(isinstance(row.get(name), kind) for row in rows for name, kind in METRICS_ROW.items()):
            raise UserError(f"--out {self.path}: metrics.jsonl holds lines that no run wrote; choose another folder")
        return rows

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint, once the metrics that it counts on are on the disk."""
        with self.metrics.open("a") as file:
            os.fsync(file.fileno())
        save_tensors(self.checkpoint, tensors, self.config)

    def load(self) -> dict[str, Tensor] | None:
        """The checkpoint's tensors, None where there is none yet."""
        if not self.checkpoint.exists():
            return None
        named = load_tensors(self.checkpoint)
        if named is None:
            raise UserError(f"--out {self.path}: its checkpoint is damaged ({self.checkpoint}); nothing was changed")
        check_checkpoint_config(self.checkpoint, self.config, f"--out {self.path}")
        return named

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run complete."""
        write_atomically(self.path / "result.json", json.dumps(result, indent=2) + "\n")
