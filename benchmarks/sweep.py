"""A sweep against single runs: python benchmarks/sweep.py [--dataset synthetic] [--rounds 60] [--out FILE.json].

Sixteen points of FedSOL (four radii, four learning rates) on CIFAR-10 with the setting of its paper, in one process.
Three single runs come first, untimed, so that compiled code is in the cache; then all single runs are timed, then the
sweep, whose step of another size has to be compiled, then the sweep again. Prints a JSON line with seconds and ratios,
and how far the accuracies of the sweep are from those of the single runs.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs import FEDSOL
from machine import describe
from synthetic import images

import fedflat
from fedflat.runs.sweep import grid_points

WARM_UP = 3  # single runs


def seconds_of(work: Any) -> tuple[float, Any]:
    """Return how long a function takes, and what it returns."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10", help="a prepared data set, or synthetic for random images")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--radii", type=float, nargs="+", default=[0.5, 1.0, 1.5, 2.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003, 0.01, 0.02, 0.03])
    parser.add_argument("--model", default=FEDSOL["model"])
    parser.add_argument("--out", type=Path, help="write the record to this file")
    given = parser.parse_args()
    data: Any = given.dataset
    changes: dict[str, Any] = {}
    if given.dataset == "synthetic":
        data, changes = images(100, 500, (3, 32, 32)), {"partition": "natural"}
    setting = FEDSOL | {"dataset": data, "rounds": given.rounds, "model": given.model, "validation": 0.1} | changes
    base = fedflat.Experiment(method=fedflat.FedSOL(), **setting)
    grid = {"rho": given.radii, "lr": given.rates}
    experiments = [experiment for _, experiment in grid_points(base, grid)]
    for experiment in experiments[:WARM_UP]:
        fedflat.run(replace(experiment, rounds=2))
    single = [seconds_of(lambda each=each: fedflat.run(each)) for each in experiments]
    first, _ = seconds_of(lambda: fedflat.sweep(base, grid))
    again, points = seconds_of(lambda: fedflat.sweep(base, grid))
    alone = {
        tuple(point.values()): result for (point, _), (_, result) in zip(grid_points(base, grid), single, strict=True)
    }
    gaps = [abs(p.result.final - alone[tuple(p.values.values())].final) for p in points]
    total = sum(seconds for seconds, _ in single)
    record = {
        "machine": describe(),
        "points": len(experiments),
        "rounds": given.rounds,
        "dataset": given.dataset,
        "single_runs_s": round(total, 2),
        "sweep_with_compilation_s": round(first, 2),
        "sweep_s": round(again, 2),
        "ratio_with_compilation": round(first / total, 3),
        "ratio": round(again / total, 3),
        "largest_accuracy_gap": max(gaps),
    }
    print(json.dumps(record))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
