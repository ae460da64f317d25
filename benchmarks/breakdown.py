"""Where the time of a round goes: python benchmarks/breakdown.py JOB [--precision bf16] [--seeds 0 1 2] [--rows 20].

Plays some rounds of a job of benchmarks/jobs.py, then one under torch's profiler, and prints on what the device (on a
CPU, the processor) spent most: microseconds, share and calls for each step of the lanes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from jobs import JOBS
from torch.profiler import ProfilerActivity, profile

from fedflat.engine.lane_packing import makespan
from fedflat.runs.build import build_run
from fedflat.runs.training import Training, expected_steps

WARM_UP = 3  # rounds


def events(training: Training) -> list[Any]:
    """What torch saw in the first round after the warm-up."""
    for _ in range(WARM_UP):
        training.play_round()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]) as seen:
        training.play_round()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return list(seen.key_averages())


def table(found: list[Any], lanes: int, steps: int, rows: int) -> str:
    """Markdown, the longest first."""
    field = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    times = {event.key: (getattr(event, field), event.count) for event in found if getattr(event, field)}
    total = sum(time for time, _ in times.values())
    lines = [f"{steps} steps of {lanes} lanes, {total / steps:.1f} µs each", ""]
    lines += ["| operation | µs | % | calls |", "|---|---|---|---|"]
    for name, (time, calls) in sorted(times.items(), key=lambda item: -item[1][0])[:rows]:
        lines.append(f"| {name[:60]} | {time / steps:.1f} | {100 * time / total:.1f} | {calls / steps:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=20)
    given = parser.parse_args()
    experiment = replace(JOBS[given.job], precision=given.precision, engine="batched", seeds=tuple(given.seeds))
    built = build_run(experiment)
    training = Training(experiment, built, None)
    found = events(training)
    steps = makespan(expected_steps(experiment, built)[WARM_UP], training.engine.lanes)
    print(table(found, training.engine.lanes, steps, given.rows))


if __name__ == "__main__":
    main()
