"""The folder of a run: config.yaml, metrics.jsonl, checkpoint/state.safetensors and result.json.

Files are replaced as a whole, so that a crash leaves the old file or the new one. metrics.jsonl is appended to, so its
last line may be incomplete.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedflat.errors import UserError, mention
from fedflat.files import remove_leftovers, replace_file, sync_folder
from fedflat.runs.checkpoint import (
    checkpoint_config,
    checkpoint_mismatch,
    data_changed,
    load_tensors,
    save_tensors,
    trained_rounds,
    trained_seeds,
)
from fedflat.runs.config import MAY_CHANGE, config_differences, growing_options, is_unedited, parse_yaml, same_run
from fedflat.runs.metrics import read_metrics

RUN_FILES = ("config.yaml", "metrics.jsonl", "result.json", "checkpoint/state.safetensors", "checkpoint/.lock")


def check_run_files(folder: Path) -> None:
    """Raise UserError if a run's file is a folder, a pipe or a device: reading one may never end."""
    for file in (*(folder / name for name in RUN_FILES), *folder.glob("analysis/*.json")):
        if file.exists() and not file.is_file():
            raise UserError(None, file, "must be a regular file; choose another folder")


def has_training(folder: Path) -> bool:
    """Return whether a folder holds a run that has trained: metrics, a checkpoint or a result."""
    files = ("metrics.jsonl", "checkpoint/state.safetensors", "result.json")
    return any((folder / name).exists() and (folder / name).stat().st_size for name in files)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file as a whole: after a crash there is the old file or the new one."""
    with replace_file(path) as file:
        file.write(text.encode("utf-8"))


def _identity(file: Path) -> tuple[int, int] | None:
    """Number and size of a file, None if there is none: they change if it is replaced or written to."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size


class OtherRunError(UserError):
    """The folder `path` belongs to the configuration `stored`, not to the `given` one; `ignored` options may differ."""

    def __init__(self, path: Path, stored: str, given: str, ignored: Collection[str] = MAY_CHANGE) -> None:
        differences = "; ".join(config_differences(stored, given, ignored=ignored))
        super().__init__("out", path, f"belongs to another configuration ({differences}); choose another folder")


class RunFolder:
    """The folder of one run, locked against other processes until `close`.

    Nothing that another run or program wrote is changed: such a folder raises UserError.

    Args:
        path: the folder, which is made if it does not exist.
        config: the run's configuration as YAML.
        resume: whether to continue a run of the same configuration, or to extend one by what may grow. It has to be set
            if training has begun there, and has no effect otherwise.
        may_grow: options that may have grown since the run was begun, of MAY_GROW.
        data: the fingerprint of the data set, which the checkpoint keeps: a run is only continued on the same data.
    """

    def __init__(
        self, path: Path, config: str, resume: bool, may_grow: Collection[str] = ("rounds",), data: str = ""
    ) -> None:
        self.path, self.config, self.config_path = path, config, path / "config.yaml"
        self.checkpoint, self.metrics = path / "checkpoint" / "state.safetensors", path / "metrics.jsonl"
        self.result, self._may_grow, self._data = path / "result.json", may_grow, data
        self._check_usable(resume)
        self._rows: list[Mapping[str, Any]] = []  # what this process has written to metrics.jsonl
        self._written = _identity(self.metrics)
        replaceable, growth = self._has_own_config(), self._growth()
        new = {path, *(parent for parent in path.parents if not parent.exists())}
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._remove_leftovers()
            for folder in new:
                sync_folder(folder.parent)
            self.result.unlink(missing_ok=True)  # of a run that is extended; before its configuration changes
            if replaceable or not self.config_path.exists():
                write_atomically(self.config_path, config)
        except OSError as error:
            raise self._error(f"cannot be written ({error.strerror or error})") from None
        if growth:
            print(f"{path}: extended ({growth})", file=sys.stderr)

    def _growth(self) -> str:
        """By what the run in the folder is extended, '' if by nothing."""
        if not has_training(self.path) or same_run(stored := self._stored_config(), self.config):
            return ""
        differences = config_differences(stored, self.config)
        return str(UserError(None, "", "; ".join(differences))).removeprefix(": ")

    def _error(self, problem: str | UserError) -> UserError:
        return UserError("out", self.path, problem)

    def _check_usable(self, resume: bool) -> None:
        """Raise UserError if the run cannot use this folder; change nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise self._error("is a file, must be a folder")
        check_run_files(self.path)
        if self.result.exists():
            return self._check_extension(resume)
        if not self.config_path.exists():
            return self._check_no_orphans()
        trained = bool(self._read_rows()) or self.checkpoint.exists()
        self._check_config(trained)
        if trained and not resume:
            raise self._error(f"holds an unfinished run; add {mention('resume')} or choose another folder")

    def _check_extension(self, resume: bool) -> None:
        """Raise UserError if a complete run cannot be extended to this configuration."""
        complete = "holds a complete run; choose another folder"
        if not self.config_path.exists():
            raise self._error(complete)
        if not resume:
            raise self._error(f"{complete}, or add {mention('resume')}")
        self._check_config(trained=True)
        if same_run(checkpoint_config(self.checkpoint) or self._stored_config(), self.config):
            raise self._error(complete)
        if not self.checkpoint.exists():
            raise self._error("its checkpoint is missing, so that it cannot be extended")
        self.load()

    def _check_no_orphans(self) -> None:
        """Raise UserError if there is a checkpoint or there are metrics, but not config.yaml, a run's first file."""
        for file in (self.checkpoint, self.metrics):
            if file.exists() and file.stat().st_size:
                problem = f"holds {file.name} but no config.yaml that it belongs to"
                raise self._error(f"{problem}; choose another folder, or restore config.yaml")

    def _check_config(self, trained: bool) -> None:
        """Raise UserError if config.yaml belongs to another run, or is a file of the user."""
        if same_run(stored := self._stored_config(), self.config):
            return
        played, rounds = trained_rounds(self.checkpoint), parse_yaml(self.config).get("rounds", 0)
        if trained and "rounds" in self._may_grow and rounds < played:
            raise UserError("rounds", rounds, f"{played} are trained in {self.path}; give as many or more")
        grown = growing_options(stored, self.config, self._may_grow, played)
        if trained and not same_run(stored, self.config, (*MAY_CHANGE, *grown)):
            raise OtherRunError(self.path, stored, self.config, (*MAY_CHANGE, *grown))
        if trained and not self._has_own_config():
            options = " and ".join(config_differences(stored, self.config, "file"))
            raise self._error(f"its config.yaml was edited and is not overwritten; change it there too ({options})")
        if not self._has_own_config():
            raise self._error("its config.yaml was not written there by a run; choose another folder")

    def _stored_config(self) -> str:
        return self.config_path.read_text(encoding="utf-8", errors="replace")

    def _has_own_config(self) -> bool:
        """Whether a run wrote config.yaml into this folder and nobody has edited it."""
        return self.config_path.exists() and self._lock_path.exists() and is_unedited(self._stored_config())

    @property
    def _lock_path(self) -> Path:
        return self.path / "checkpoint" / ".lock"

    def _lock(self) -> None:
        """Raise UserError if another process trains in this folder. The lock ends with the process."""
        self._lock_file = open(self._lock_path, "a")  # noqa: SIM115
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._error("another process is training in this folder") from None

    def _remove_leftovers(self) -> None:
        """Remove temporary files of killed runs, also that of the checkpoint of version 0.1.0."""
        for file in (self.config_path, self.metrics, self.checkpoint, self.result):
            remove_leftovers(file)
        self.checkpoint.with_suffix(".tmp").unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        self._lock_file.close()

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to metrics.jsonl."""
        self._restore_metrics()
        added = list(rows)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in added)
        self._rows += added
        self._written = _identity(self.metrics)

    def _restore_metrics(self) -> None:
        """Write metrics.jsonl again if it was removed or changed since this process wrote to it."""
        if _identity(self.metrics) != self._written:
            print(f"{self.metrics}: was removed or changed while the run trains; it is written again", file=sys.stderr)
            self._write_rows(self._rows)

    def rewind(
        self, round: int, evaluations: Iterable[tuple[int, int]] = (), metric: str = "loss"
    ) -> list[dict[str, Any]]:
        """Remove the metrics of rounds after `round`, the checkpoint's, and return the rest.

        Args:
            round: the last round to keep.
            evaluations: (round, seed) of the rows that must be there; raises UserError if one is missing.
            metric: what every row must have; raises UserError if one has not.
        """
        rows = [row for row in self._read_rows() if row["round"] <= round]
        if any(metric not in row for row in rows):
            raise self._error(f"metrics.jsonl has rows without {metric}; restore the file or choose another folder")
        present = {(row["round"], row["seed"]) for row in rows}
        if missing := sorted({when for when, seed in evaluations if (when, seed) not in present}):
            problem = f"metrics.jsonl lacks rounds up to the checkpoint's {round}, the first is round {missing[0]}"
            raise self._error(f"{problem}; restore the file or choose another folder")
        self._write_rows(rows)
        return rows

    def _write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = list(rows)
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in self._rows))
        self._written = _identity(self.metrics)

    def _read_rows(self) -> list[dict[str, Any]]:
        try:
            return read_metrics(self.metrics)
        except UserError as error:
            raise self._error(error) from None

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint, after the metrics up to this round are safely on the disk."""
        self._restore_metrics()
        with self.metrics.open("a") as file:
            os.fsync(file.fileno())
        self._written = _identity(self.metrics)
        save_tensors(self.checkpoint, tensors, self.config, self._data)

    def load(self) -> dict[str, Tensor] | None:
        """Return the checkpoint's tensors, None if there is no checkpoint yet; raise UserError if it is damaged."""
        if not self.checkpoint.exists():
            return None
        named = load_tensors(self.checkpoint)
        if named is None:
            raise self._error(f"its checkpoint is damaged ({self.checkpoint}); nothing was changed")
        if mismatch := checkpoint_mismatch(self.checkpoint, self.config, may_grow=self._may_grow):
            raise self._error(mismatch)
        if data_changed(self.checkpoint, self._data):
            problem = f"its data have changed since the run in {self.path} was begun; restore them"
            raise UserError("dataset", parse_yaml(self.config)["dataset"], f"{problem} or choose another folder")
        return named

    def added_seeds(self) -> tuple[int, list[int]]:
        """Return the checkpoint's round and the seeds of the configuration that it lacks; none without a checkpoint."""
        try:
            with safe_open(self.checkpoint, "pt") as file:
                known = trained_seeds(file.keys())
        except (SafetensorError, OSError):  # missing, or damaged, which `load` says
            return 0, []
        added = [seed for seed in parse_yaml(self.config).get("seeds", ()) if seed not in known]
        if added:
            self.load()  # refuses a damaged checkpoint, or one of another run
        return trained_rounds(self.checkpoint), added

    def add_seeds(self, other: Path) -> None:
        """Add the seeds of a complete run that has reached the same round, and remove its folder.

        The checkpoint is replaced after the metrics, so a crash in between repeats this.
        """
        own, added = self.load(), load_tensors(other / "checkpoint" / "state.safetensors")
        if own is None or added is None:
            raise self._error(f"its checkpoint or that of the added seeds is damaged ({other})")
        seeds = trained_seeds(own)
        rows = [row for row in self._read_rows() if row["seed"] in seeds]
        rounds = {row["round"] for row in rows}
        rows += [row for row in read_metrics(other / "metrics.jsonl") if row["round"] in rounds]
        self._write_rows(sorted(rows, key=lambda row: row["round"]))
        counters = torch.cat([own["counters"][:1], own["counters"][1:] + added["counters"][1:]])
        self.save({**own, **added, "counters": counters})
        shutil.rmtree(other)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which marks the run as complete."""
        shutil.rmtree(self.path / "added-seeds", ignore_errors=True)
        write_atomically(self.result, json.dumps(result, indent=2) + "\n")
