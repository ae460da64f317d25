"""What `fedflat analyse` left beside a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.flatness.summary import SHOWN
from fedflat.runs.read import DAMAGE, StoredRun, is_measured, is_number, is_number_list

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


def read_analyses(runs: Sequence[StoredRun]) -> tuple[list[Documents], list[str]]:
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
            except DAMAGE as error:
                problems.append(f"{path}: damaged ({type(error).__name__}: {error}); run fedflat analyse again")
    return found, problems


def _read(path: Path, what: str) -> dict[str, Any]:
    """A document whose seeds all have the numbers and arrays that are shown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    seeds: Mapping[str, Mapping[str, Any]] = document["seeds"]
    if not seeds:
        raise ValueError("no seeds")
    if not isinstance(document["settings"], Mapping):
        raise ValueError("no settings")
    for seed in seeds.values():
        for key in SHOWN.get(what, {}):
            if not is_measured(seed.get(key)):
                raise ValueError(f"{key} {seed[key]}")
        for losses in _surfaces(seed, what):
            _check_surface(seed["x"], seed["y"], losses)
        _check_rows([seed[name] for name in ARRAYS[what]])
    return document


def _surfaces(seed: Mapping[str, Any], what: str) -> list[list[list[float | None]]]:
    """The losses over a plane that a measurement holds."""
    if what == "local-landscape":
        first = seed["surfaces"][0]
        return [first["own"], first["all"]]
    return [seed["loss"]] if what == "landscape" else []


def _check_surface(x: list[float], y: list[float], losses: list[list[float | None]]) -> None:
    """At least two places each way, and a loss for some of them."""
    if not all(map(is_number, [*x, *y])) or min(len(x), len(y)) < 2:
        raise ValueError("x and y are no axes")
    if all(loss is None for row in losses for loss in row):
        raise ValueError("no finite loss")
    _check_rows([x, *losses])
    _check_rows([y, [0.0] * len(losses)])


def _check_rows(arrays: Sequence[Any]) -> None:
    """Lists of numbers, as long as each other."""
    if not all(map(is_number_list, arrays)):
        raise ValueError("arrays without numbers")
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("arrays of unequal length")
