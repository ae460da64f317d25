"""Run folders as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedflat.engine.folder import read_rows
from fedflat.errors import UserError
from fedflat.experiments.result import Result, summary


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it; `result` of an unfinished run is what can be said so far."""

    name: str
    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any]
    complete: bool

    def result_object(self) -> Result:
        """The result as `fedflat.run` returned it."""
        return Result(**self.result, history=self.rows)


def read_run(path: Path) -> Run:
    """Read a run folder; raises UserError for one that is none or is damaged."""
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
        rows, finished = read_rows(path / "metrics.jsonl"), path / "result.json"
        result = json.loads(finished.read_text(encoding="utf-8")) if finished.exists() else {}
        if not rows:
            raise UserError(f"{path}: has no metrics yet")
        return Run(path.name, path, config, rows, {**summary(rows, config["seeds"]), **result}, finished.exists())
    except FileNotFoundError as error:
        raise UserError(f"{path}: not a run folder ({Path(str(error.filename)).name} is missing)") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, yaml.YAMLError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: damaged run folder ({type(error).__name__}: {error})") from None
