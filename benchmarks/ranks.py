"""What many ranks cost: torchrun --standalone --nproc-per-node N benchmarks/ranks.py PART (docs/scaling.md).

reduce   the sum over ranks that ends an exchange, by length of the vector
move     one message with clients' states to the next rank, by length
round    a whole round and its local training, for one population, cohort, model and method
million  the same with a million clients, the time to set them up and the memory of a process
travel   (one process) how many clients train away from home, by cohort and ranks
Rank 0 prints one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from machine import describe
from synthetic import images

import fedflat
from fedflat.engine.distributed import Distributed, owner_rank
from fedflat.engine.lane_packing import assign_ranks
from fedflat.engine.participation import choose_cohort
from fedflat.engine.processes import ProcessGroup, join_processes
from fedflat.engine.ranks import find_rank
from fedflat.runs.build import build_run
from fedflat.runs.training import Training

LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--model", default="digits-cnn")
    parser.add_argument("--cohort", type=int, default=20)
    options = parser.parse_args()
    with join_processes(find_rank("auto"), "cpu") as processes:
        for row in [describe() | {"ranks": processes.size}, *PARTS[options.part](processes, options)]:
            if processes.leads:
                print(json.dumps(row), flush=True)


def timed(processes: ProcessGroup, repeats: int, action: Callable[[], Any]) -> dict[str, float]:
    """Median and least milliseconds of an action that all ranks begin together."""
    seconds = []
    for _ in range(repeats + 1):
        processes.gather_numbers([0])
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return {"ms": 1e3 * statistics.median(seconds[1:]), "least_ms": 1e3 * min(seconds[1:])}


def reduce(processes: ProcessGroup, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for length in LENGTHS:
        vector = torch.zeros(length)
        yield {"floats": length, **timed(processes, options.repeats, lambda: processes.sum_over_ranks(vector))}


def move(processes: ProcessGroup, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    right, left = (processes.rank + 1) % processes.size, (processes.rank - 1) % processes.size
    for length in LENGTHS:
        vector = torch.zeros(length)
        room = torch.zeros(length)
        yield {
            "floats": length,
            **timed(processes, options.repeats, lambda: processes.send_and_receive({right: vector}, {left: room})),
        }


def travel(processes: ProcessGroup, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for ranks in (2, 8, 64):
        for size in (10, 100, 1_000, 10_000):
            away = [_away(choose_cohort(seed, 0, 1_000_000, size), ranks) for seed in range(options.repeats)]
            begin = time.perf_counter()
            _away(choose_cohort(0, 1, 1_000_000, size), ranks)
            spent = 1e3 * (time.perf_counter() - begin)
            yield {"ranks": ranks, "cohort": size, "away": statistics.mean(away), "planning_ms": spent}


def _away(clients: list[int], ranks: int) -> int:
    """How many of these clients, all with the same amount of work, train away from home."""
    owners = [owner_rank(client, ranks) for client in clients]
    chosen = assign_ranks([1] * len(clients), ranks, owners)
    return sum(rank != owner for rank, owner in zip(chosen, owners, strict=True))


def rounds(processes: ProcessGroup, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield from _rounds(processes, options, clients=1000, samples=32)


def million(processes: ProcessGroup, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield from _rounds(processes, options, clients=1_000_000, samples=1)


def _rounds(
    processes: ProcessGroup, options: argparse.Namespace, clients: int, samples: int
) -> Iterator[dict[str, Any]]:
    """Set up, play rounds, and say what a round took and how much of it was local training."""
    begin = time.perf_counter()
    training = _training(processes, options, images(clients, samples, (1, 8, 8)))
    ready = time.perf_counter() - begin
    local = _clocked(training.engine) if processes.size > 1 else []
    spent = timed(processes, options.repeats, training.play_round)
    share = {"local_ms": 1e3 * statistics.median(local[1:])} if local else {}
    yield {
        "clients": clients,
        **{name: getattr(options, name) for name in ("method", "model", "cohort")},
        "parameters": training.built.task.size,
        **spent,
        **share,
        "setup_s": ready,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _training(processes: ProcessGroup, options: argparse.Namespace, data: fedflat.Dataset) -> Training:
    method = fedflat.METHODS[options.method]()
    how: dict[str, Any] = {"batch_size": 16, "local_epochs": 1, "lr": 0.01, "rounds": 10**6, "device": "cpu"}
    experiment = fedflat.Experiment(dataset=data, model=options.model, cohort=options.cohort, method=method, **how)
    return Training(experiment, build_run(experiment), None, processes=processes)


def _clocked(engine: Any) -> list[float]:
    """Makes the engine's lanes note how long they train."""
    assert isinstance(engine, Distributed)
    spent: list[float] = []
    train = engine.local_engine.train

    def clocked(jobs: Any) -> Any:
        begin = time.perf_counter()
        done = train(jobs)
        spent.append(time.perf_counter() - begin)
        return done

    engine.local_engine.train = clocked  # type: ignore[method-assign]
    return spent


PARTS: dict[str, Callable[[ProcessGroup, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "reduce": reduce,
    "move": move,
    "round": rounds,
    "million": million,
    "travel": travel,
}

if __name__ == "__main__":
    main()
