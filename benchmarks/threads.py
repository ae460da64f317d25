"""What the choice of CPU threads costs and gains: python benchmarks/threads.py [--rounds 100] [--busy 2].

The comparison of `make run` as a command, with the threads that fedflat chooses, with one, with one per core, and with
one per core that spin while they wait (torch's default); first on the machine as it is, then beside `--busy` processes
that never sleep. Then a round of several models with one thread and with one per core, beside the number that the rule
of src/fedflat/runs/threads.py chooses. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from machine import describe
from synthetic import Timed, images

import fedflat
from engines import CASES
from fedflat.runs.threads import count_cores, threads_by_size

DEMO = Path(__file__).parents[1] / "examples" / "demo.yaml"
METHODS = ("fedavg", "fedsol:perturb=all", "fedgf:rho=0.05,threshold=0.7", "fedgloss")
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")


class Spent(NamedTuple):
    """Seconds by the clock and of the processor."""

    wall: float
    cpu: float


def settings() -> dict[str, dict[str, str]]:
    """The variables of every row."""
    cores = str(count_cores())
    return {
        "fedflat's choice": {},
        "1 thread": {"OMP_NUM_THREADS": "1"},
        f"{cores} threads": {"OMP_NUM_THREADS": cores},
        f"{cores} threads that spin": {"OMP_NUM_THREADS": cores, "OMP_WAIT_POLICY": "active"},
    }


def demo(rounds: int, variables: dict[str, str]) -> Spent:
    """Run the comparison of `make run` in a new folder."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = [sys.executable, "-m", "fedflat", "compare", *METHODS, "--config", str(DEMO), "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*command, "--out", f"{folder}/demo"], capture_output=True, text=True, env=environment)
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that use a core each while the `with` block lasts."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def commands(rounds: int, busy: int, repetitions: int) -> dict[str, tuple[Spent, Spent]]:
    """The least time of every setting, alone and beside busy loops; the settings are taken in turn."""
    found: dict[str, tuple[list[Spent], list[Spent]]] = {name: ([], []) for name in settings()}
    for _ in range(repetitions):
        for beside, count in enumerate((0, busy)):
            for name, variables in settings().items():
                with busy_loops(count):
                    found[name][beside].append(demo(rounds, variables))
                print(f"{name}, {count} busy loops: {found[name][beside][-1].wall:.1f} s", file=sys.stderr, flush=True)
    return {name: (min(alone), min(beside)) for name, (alone, beside) in found.items()}


def command_table(found: dict[str, tuple[Spent, Spent]], busy: int) -> str:
    """Markdown; the best time is that of the fastest setting on the idle machine."""
    best = min(alone.wall for alone, _ in found.values())
    lines = [f"| threads | s | × the best | processor s | s beside {busy} busy loops | × alone |", "|---" * 6 + "|"]
    for name, (alone, beside) in found.items():
        numbers = (alone.wall, alone.wall / best, alone.cpu, beside.wall, beside.wall / alone.wall)
        lines.append(f"| {name} | " + " | ".join(f"{number:.3g}" for number in numbers) + " |")
    return "\n".join(lines)


def round_of(model: str, rounds: int) -> dict[str, float]:
    """The least milliseconds of a round with one thread and with one per core, in turn, and what the rule chooses."""
    case = CASES[model]
    how = {"batch_size": case.batch_size, "local_epochs": 1, "cohort": 5, "lr": 0.01, "rounds": 10**6, "device": "cpu"}
    timed = Timed(fedflat.Experiment(dataset=images(10, case.samples, case.shape), model=model, **how))
    times: dict[int, list[float]] = {1: [], count_cores(): []}
    for count in list(times) * rounds:
        torch.set_num_threads(count)
        timed.play(warm=True)
        timed.play()
        times[count].append(1000 * timed.times.wall[-1])
    chosen = threads_by_size(timed.training.built, timed.training.built.client_data.batch_size)
    return {"chosen": chosen, "one_ms": min(times[1]), "all_ms": min(times[count_cores()])}


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="of the comparison; 0 leaves it out")
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--models", nargs="*", choices=CASES, default=["mlp", "digits-cnn", "fedavg-cnn", "lenet-cnn"])
    given = parser.parse_args()
    print(json.dumps(describe()))
    if given.rounds:
        print(command_table(commands(given.rounds, given.busy, given.repetitions), given.busy), flush=True)
    print(f"\n| model | batch | chosen | ms, 1 thread | ms, {count_cores()} threads |\n" + "|---" * 5 + "|")
    for model in given.models:
        row = round_of(model, 5)
        numbers = f"{row['chosen']} | {row['one_ms']:.1f} | {row['all_ms']:.1f}"
        print(f"| {model} | {CASES[model].batch_size} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
