"""Run folders as data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedflat.engine.configuration import parse
from fedflat.engine.folder import read_rows
from fedflat.errors import UserError
from fedflat.experiments.result import Result
from fedflat.report.checks import DAMAGE, check_config, check_result, check_row


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
        config = parse((path / "config.yaml").read_text(encoding="utf-8"))
        check_config(config)
        rows = read_rows(path / "metrics.jsonl")
        for row in rows:
            check_row(row)
        result = _result(path / "result.json", rows)
    except FileNotFoundError as error:
        raise UserError(f"{path}: not a run folder ({Path(str(error.filename)).name} is missing)") from None
    except (*DAMAGE, UserError) as error:
        raise UserError(f"{path}: damaged run folder ({type(error).__name__}: {error})") from None
    if not rows:
        raise UserError(f"{path}: has no metrics yet")
    return Run(Path(os.path.abspath(path)).name, path, {"cohort": 1, **config}, rows, result)


def _result(path: Path, rows: list[dict[str, Any]]) -> Result | None:
    """What a finished run has come to."""
    if not path.exists():
        return None
    result = Result(**json.loads(path.read_text(encoding="utf-8")), history=rows)
    check_result(result)
    return result


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
