"""What `fedflat analyse` left beside a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.report.runs import Run, plain_numbers

ARRAYS = {  # the arrays that figures need, all of one length; landscapes have surfaces
    "hessian": ("number", "eigenvalue"),
    "spectrum": ("eigenvalue", "density"),
    "lpf": (),
    "discrepancy": (),
    "local": ("client", "lambda_local", "lambda_global"),
    "landscape": (),
    "local-landscape": (),
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
    if not seeds or not plain_numbers(_values(seeds)):
        raise ValueError("seeds without numbers")
    document["settings"].get("directions")  # what it was measured with
    for seed in seeds.values():
        for losses in _surfaces(seed, what):
            if all(loss is None for row in losses for loss in row):
                raise ValueError("no finite loss")
            _same_length([seed["x"], *losses])
            _same_length([seed["y"], losses])
        _same_length([seed[name] for name in ARRAYS[what]])
    return document


def _values(found: Any) -> Any:
    """What mappings within lists hold, as lists."""
    if isinstance(found, Mapping):
        return [_values(each) for each in found.values()]
    return [_values(each) for each in found] if isinstance(found, list) else found


def _surfaces(seed: Mapping[str, Any], what: str) -> list[list[list[float | None]]]:
    """The losses over a plane that a measurement holds."""
    if what == "local-landscape":
        first = seed["surfaces"][0]
        return [first["own"], first["all"]]
    return [seed["loss"]] if what == "landscape" else []


def _same_length(arrays: Sequence[Sequence[Any]]) -> None:
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("arrays of unequal length")
