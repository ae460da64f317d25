"""Where the time of a round goes: python benchmarks/breakdown.py JOB [--precision bf16] [--seeds 0 1 2] [--made-up].

Plays some rounds of a job, or of a model, of benchmarks/jobs.py, then one under torch's profiler. Prints how long a
round takes, and on what the device (on a CPU, the processor) spent most: microseconds, share and calls for each step of
the lanes. `--made-up` takes random images instead of CIFAR-10.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from jobs import JOBS, MODELS, made_up, model_job
from torch.profiler import ProfilerActivity, profile

from fedflat.engine.lane_packing import makespan
from fedflat.runs.build import build_run
from fedflat.runs.training import Training, expected_steps

WARM_UP, TIMED = 3, 8  # rounds


def milliseconds(training: Training) -> float:
    """How long a round takes after the warm-up, on average."""
    for _ in range(WARM_UP):
        training.play_round()
    _wait()
    began = time.perf_counter()
    for _ in range(TIMED):
        training.play_round()
    _wait()
    return 1000 * (time.perf_counter() - began) / TIMED


def events(training: Training) -> list[Any]:
    """What torch saw in one round."""
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]) as seen:
        training.play_round()
        _wait()
    return list(seen.key_averages())


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(found: list[Any], lanes: int, steps: int, rows: int) -> str:
    """Markdown, the longest first."""
    field = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    times = {event.key: (getattr(event, field), event.count) for event in found if getattr(event, field)}
    total = sum(spent for spent, _ in times.values())
    lines = [f"{steps} steps of {lanes} lanes, {total / steps:.1f} µs each", ""]
    lines += ["| operation | µs | % | calls |", "|---|---|---|---|"]
    for name, (spent, calls) in sorted(times.items(), key=lambda item: -item[1][0])[:rows]:
        lines.append(f"| {name[:60]} | {spent / steps:.1f} | {100 * spent / total:.1f} | {calls / steps:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=(*JOBS, *MODELS))
    parser.add_argument("--precision")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--made-up", action="store_true")
    given = parser.parse_args()
    experiment = model_job(given.job) if given.job in MODELS else JOBS[given.job]
    experiment = made_up(experiment) if given.made_up and given.job not in MODELS else experiment
    experiment = replace(experiment, precision=given.precision or experiment.precision, seeds=tuple(given.seeds))
    experiment = replace(experiment, engine="batched", rounds=WARM_UP + TIMED + 1, eval_every=WARM_UP + TIMED + 1)
    built = build_run(experiment)
    training = Training(experiment, built, None)
    ms, found = milliseconds(training), events(training)
    steps = makespan(expected_steps(experiment, built)[WARM_UP + TIMED], training.engine.lanes)
    print(f"{ms:.2f} ms a round on average; the profiled one:")
    print(table(found, training.engine.lanes, steps, given.rows))


if __name__ == "__main__":
    main()
