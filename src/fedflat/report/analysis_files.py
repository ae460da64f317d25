"""Read what `fedflat analyse` measured, and check that a file holds what the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflat.report.comparison import SUMMARY_COLUMNS, AnalysisDocuments
from fedflat.runs.metrics import is_number, is_number_list, is_number_or_null
from fedflat.runs.read import DAMAGE, StoredRun

ANALYSIS_ARRAYS = {  # arrays of equal length that a measurement must have; landscapes are checked by _check_surface
    "hessian": ("number", "eigenvalue"),
    "spectrum": ("eigenvalue", "density"),
    "lpf": (),
    "discrepancy": (),
    "local": ("client", "lambda_local", "lambda_global"),
    "landscape": (),
    "local-landscape": (),
    "path": ("distance", "along_gradient", "along_random"),
    "barrier": ("gamma", "loss"),
    "barriers": (),
    "trajectory": ("round", "server_x", "server_y", "server_loss"),
}


def read_analyses(runs: Sequence[StoredRun]) -> tuple[list[AnalysisDocuments], list[str]]:
    """Read what `fedflat analyse` wrote into the runs' folders.

    Args:
        runs: the runs; not all need to be analysed.

    Returns each run's documents by measurement, and a warning for each file that is damaged.
    """
    documents: list[AnalysisDocuments] = [{} for _ in runs]
    warnings = []
    for run, of_run in zip(runs, documents, strict=True):
        for what in ANALYSIS_ARRAYS:
            path = run.path / "analysis" / f"{what}.json"
            try:
                of_run[what] = _read_document(path, what)
            except FileNotFoundError:
                continue
            except DAMAGE as error:
                warnings.append(f"{path}: damaged ({type(error).__name__}: {error}); run fedflat analyse again")
    return documents, warnings


def _read_document(path: Path, what: str) -> dict[str, Any]:
    """Read a measurement; raise one of DAMAGE if a seed lacks a number or an array that the page shows."""
    document = json.loads(path.read_text(encoding="utf-8"))
    seeds: Mapping[str, Mapping[str, Any]] = document["seeds"]
    if not seeds:
        raise ValueError("no seeds")
    if not isinstance(document["settings"], Mapping):
        raise ValueError("no settings")
    for seed in seeds.values():
        for key in SUMMARY_COLUMNS.get(what, {}):
            if not is_number_or_null(seed.get(key)):
                raise ValueError(f"{key} {seed[key]}")
        for losses in _surfaces(seed, what):
            _check_surface(seed["x"], seed["y"], losses)
        if what == "barriers":
            _check_arrays([seed["barrier"], [0.0] * len(seed["to"])])
        if what == "trajectory":
            _check_trajectory(seed)
        _check_arrays([seed[name] for name in ANALYSIS_ARRAYS[what]])
    return document


def _surfaces(seed: Mapping[str, Any], what: str) -> list[list[list[float | None]]]:
    """Return the loss surfaces of a measurement that the page shows."""
    if what == "local-landscape":
        first = seed["surfaces"][0]
        return [first["own"], first["all"]]
    return [seed["loss"]] if what in ("landscape", "trajectory") else []


def _check_surface(x: list[float], y: list[float], losses: list[list[float | None]]) -> None:
    """Raise ValueError unless there are at least two points per axis, and losses[i][j] of which some are finite."""
    if not all(map(is_number, [*x, *y])) or min(len(x), len(y)) < 2:
        raise ValueError("x and y are no axes")
    if all(loss is None for row in losses for loss in row):
        raise ValueError("no finite loss")
    _check_arrays([x, *losses])
    _check_arrays([y, [0.0] * len(losses)])


def _check_trajectory(seed: Mapping[str, Any]) -> None:
    """Raise ValueError unless every round but the first has a start, and the places of its clients."""
    for each in seed["clients"]:
        _check_arrays([each["x"], each["y"]])
        _check_arrays([[each["start_x"], each["start_y"]]])
    if [each["round"] for each in seed["clients"]] != seed["round"][1:]:
        raise ValueError("rounds without clients")
    if not all(is_number(seed[key]) for key in ("explained_1", "explained_2", "client_share", "replay_distance")):
        raise ValueError("no explained variance")


def _check_arrays(arrays: Sequence[Any]) -> None:
    """Raise ValueError unless these are lists of numbers of equal length."""
    if not all(map(is_number_list, arrays)):
        raise ValueError("arrays without numbers")
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("arrays of unequal length")
