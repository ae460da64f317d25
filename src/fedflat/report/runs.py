"""Run folders as data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import yaml

from fedflat.engine.folder import read_rows
from fedflat.errors import UserError
from fedflat.experiments.result import Result


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it; `result` is None while it is unfinished."""

    name: str
    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: Result | None

    @property
    def evaluated_on(self) -> str:
        """The samples that accuracy and loss are of: test, or validation where training samples are held out."""
        return "validation" if self.config.get("validation") else "test"


def evaluated_on(runs: Sequence[Run]) -> str:
    """What all runs are evaluated on: test, validation, or test or validation."""
    return " or ".join(sorted({run.evaluated_on for run in runs}))


def read_run(path: Path) -> Run:
    """Read a run folder; raises UserError for one that is none or is damaged."""
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
        rows, finished = [_checked(row) for row in read_rows(path / "metrics.jsonl")], path / "result.json"
        result = Result(**json.loads(finished.read_text(encoding="utf-8")), history=rows) if finished.exists() else None
        setting = {"method": config["method"], "cohort": int(config.get("cohort", 1)), **config}
    except FileNotFoundError as error:
        raise UserError(f"{path}: not a run folder ({Path(str(error.filename)).name} is missing)") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: damaged run folder ({type(error).__name__}: {error})") from None
    if not rows:
        raise UserError(f"{path}: has no metrics yet")
    return Run(path.name, path, setting, rows, result)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl that has what tables and figures need."""
    numbers = [row["round"], row["seed"], row["accuracy"], 0.0 if row["loss"] is None else row["loss"]]
    probes = row.get("probes", {})
    if not all(isinstance(number, Real) for number in numbers) or not plain_numbers([*probes.values()]):
        raise ValueError(f"metrics.jsonl: {row}")
    return row


def plain_numbers(value: Any) -> bool:
    """Whether a value of JSON is a number, null, or a list of such."""
    return all(map(plain_numbers, value)) if isinstance(value, list) else value is None or isinstance(value, Real)


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, with names that tell them apart, and why the others cannot."""
    runs: list[Run] = []
    problems: list[str] = []
    for path in (run for given in paths for run in expand(given)):
        try:
            runs.append(read_run(path))
        except UserError as error:
            problems.append(str(error))
    names = [run.name for run in runs]
    return [dataclasses.replace(r, name=str(r.path)) if names.count(r.name) > 1 else r for r in runs], problems


def expand(path: Path) -> Iterator[Path]:
    """A folder of runs, such as a comparison's, stands for its runs."""
    inside = [] if (path / "config.yaml").exists() else sorted(p.parent for p in path.glob("*/config.yaml"))
    yield from inside or [path]
