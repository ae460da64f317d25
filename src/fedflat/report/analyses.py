"""What `fedflat analyse` left beside a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.report.runs import Run, plain_numbers

ARRAYS = {  # the arrays that figures need, all of one length; landscapes have theirs in `loss`
    "hessian": ("number", "eigenvalue"),
    "spectrum": ("eigenvalue", "density"),
    "lpf": (),
    "discrepancy": (),
    "local": ("client", "lambda_local", "lambda_global"),
    "landscape": ("y", "loss"),
    "path": ("distance", "along_gradient", "along_random"),
    "barrier": ("gamma", "loss"),
}
Documents = dict[str, dict[str, Any]]


def read_analyses(runs: Sequence[Run]) -> tuple[list[Documents], list[str]]:
    """Each run's documents by measurement, and why others cannot be read."""
    found: list[Documents] = [{} for _ in runs]
    problems = []
    for run, documents in zip(runs, found, strict=True):
        for what in ARRAYS:
            path = run.path / "analysis" / f"{what}.json"
            try:
                documents[what] = _read(path, what)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{path}: damaged ({type(error).__name__}: {error}); run fedflat analyse again")
    return found, problems


def _read(path: Path, what: str) -> dict[str, Any]:
    """A document whose seeds all have their arrays."""
    document = json.loads(path.read_text(encoding="utf-8"))
    seeds: Mapping[str, Mapping[str, Any]] = document["seeds"]
    if not seeds or not plain_numbers([list(seed.values()) for seed in seeds.values()]):
        raise ValueError("seeds without numbers")
    document["settings"].get("directions")  # what it was measured with
    for seed in seeds.values():
        across = [seed["x"], *seed["loss"]] if what == "landscape" else []
        if across and all(loss is None for row in across[1:] for loss in row):
            raise ValueError("no finite loss")
        for arrays in ([seed[name] for name in ARRAYS[what]], across):
            if len({len(array) for array in arrays}) > 1:
                raise ValueError("arrays of unequal length")
    return document
