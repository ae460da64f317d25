"""Run folders with made-up numbers, so that tests know what the page must show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from fedflat.runs.config import dump_experiment
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import Result, summarise_history

SETTINGS: dict[str, Any] = {"directions": "random", "extent": 1.0, "on": "test", "sigma": 0.01, "rho": 0.1}


def vary(value: Any, seed: int) -> Any:
    """Return a probe's value in a seed: `value` in seed 0, 1 more in seed 1."""
    return [vary(each, seed) for each in value] if isinstance(value, list) else None if value is None else value + seed


def bowl(axis: list[float], height: float) -> list[list[float]]:
    """Return height · (x² + y²) on a square grid."""
    return [[height * (x * x + y * y) for x in axis] for y in axis]


TRAJECTORY_CLIENTS = [
    {"round": 2, "client": [4, 7], "start_x": 1.5, "start_y": 0.5, "x": [1.0, 2.0], "y": [1.0, 0.0]},
    {"round": 6, "client": [1], "start_x": 0.25, "start_y": 0.0, "x": [-0.5], "y": [-0.5]},
]
TRAJECTORY: dict[str, Any] = {
    "x": [-1.0, 1.0, 3.0],
    "y": [-1.0, 0.0, 1.0],
    "loss": bowl([-1.0, 1.0, 3.0], 9.0),
    "round": [0, 2, 6],
    "server_x": [2.0, 1.0, 0.0],
    "server_y": [1.0, 0.5, 0.0],
    "server_loss": [30.0, 20.0, 18.0],
    "clients": TRAJECTORY_CLIENTS,
    "explained_1": 0.876,
    "explained_2": 0.1,
    "client_share": 0.125,
    "replay_distance": 0.0,
}


def write_analysis(folder: Path, height: float = 1.0, shared_by: str = "abc", **changed: Any) -> None:
    """Write analysis/*.json as fedflat analyse does: a bowl as landscape, eigenvalues 3 · height and 1, and so on."""
    settings = SETTINGS | changed
    axis = [-settings["extent"], 0.0, settings["extent"]]
    client = {"client": 3, "own": bowl(axis, 1.0), "all": bowl(axis, 5.0)}
    columns: dict[str, dict[str, Any]] = {
        "hessian": {"lambda1": 3.0 * height, "trace": 5.0, "number": [1, 2], "eigenvalue": [3.0 * height, 1.0]},
        "spectrum": {"eigenvalue": [-1.0, 0.0, 3.0], "density": [0.0, 1.0, 0.001]},
        "lpf": {"lpf": 0.5, "lpf_error": 0.01},
        "discrepancy": {"discrepancy": 0.25},
        "local": {"client": [0, 1], "lambda_local": [0.5, None], "lambda_global": [2.0, 4.0], "mean_lambda_local": 0.5},
        "landscape": {"x": axis, "y": axis, "loss": bowl(axis, height)},
        "local-landscape": {"x": axis, "y": axis, "surfaces": [client]},
        "path": {"distance": axis, "along_gradient": [2.0, 1.0, 2.0], "along_random": [1.5, 1.0, 1.5]},
        "barriers": {"to": ["other"], "barrier": [2.0]},
        "trajectory": TRAJECTORY,
        "barrier": {"gamma": [-1.0, 0.0, 0.5, 1.0, 2.0], "loss": [90.0, 1.0, 3.0, 1.0, 90.0], "barrier": 2.0},
    }
    (folder / "analysis").mkdir()
    for what, found in columns.items():
        facts = {"what": what, "samples": 360, "to": "other", "directions_shared_by": [*shared_by]}
        document = {**facts, "settings": settings, "seeds": {"0": found, "1": found}}
        (folder / "analysis" / f"{what}.json").write_text(json.dumps(document))


def write_run(
    folder: Path,
    accuracies: list[float],
    seconds: float = 1.0,
    finished: bool = True,
    lost: bool = False,
    probes: dict[str, Any] | None = None,
    less: float = 0.1,
    **setting: Any,
) -> Path:
    """Write a run folder with two seeds; the second is `less` accurate, and has no finite loss if `lost`."""
    folder.mkdir(parents=True)
    experiment = Experiment(**{"seeds": (0, 1), "rounds": len(accuracies), **setting})
    rows = [
        {"round": r, "seed": s, "accuracy": a - less * s, "loss": None if lost and s else 1 - a, "seconds": 0.1 * r}
        for r, a in enumerate(accuracies, 1)
        for s in (0, 1)
    ]
    if probes:
        rows = [row | {"probes": {key: vary(value, row["seed"]) for key, value in probes.items()}} for row in rows]
    (folder / "config.yaml").write_text(dump_experiment(experiment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        numbers = {"client_steps_per_second": 9.0, "bytes_down_per_client_round": 4000, "parameters": 1000}
        names = {"method": "fedavg", "seeds": [0, 1], "versions": {"fedflat": "0"}, "privacy": None, "clients": 20}
        names["stopped"] = None
        sent = {"bytes_up_per_client_round": 4000, "seconds": seconds, "rounds": len(accuracies)}
        facts = {**summarise_history(rows, [0, 1]), **numbers, **names, **sent}
        required = {f.name for f in dataclasses.fields(Result) if f.default is dataclasses.MISSING}
        assert facts.keys() >= required - {"history"}
        (folder / "result.json").write_text(json.dumps(facts))
    return folder
