"""The digits job with fedflat: python benchmarks/fedflat_job.py [--engine E] [--seeds 0 1 2] prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace

from jobs import JOBS
from plain import now, timing

import fedflat


def measure(job: fedflat.Experiment) -> dict[str, object]:
    """Train and time every round; accuracies are means over the seeds."""
    begin, ends = now(), []
    result = fedflat.run(job, watch=lambda round, rows: ends.append(now()))
    curves = [result.curve(seed) for seed in job.seeds]
    accuracies = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    return timing(begin, ends, accuracies) | {"version": result.versions["fedflat"]}


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="auto", choices=("auto", "sequential", "batched"))
    parser.add_argument("--rounds", type=int, default=JOBS["digits"].rounds)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    job = replace(JOBS["digits"], engine=given.engine, rounds=given.rounds, seeds=tuple(given.seeds), device="cpu")
    print(json.dumps(measure(job)))


if __name__ == "__main__":
    main()
