"""How long λ1 and a landscape take: python benchmarks/flatness.py [--samples 10000] [--grid 41] [--batch 5000].

The FedAvg CNN as it starts, on random images. Each is measured twice; the first time has the device's warm-up in it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import describe

from fedflat.core.task import Batch, Task
from fedflat.flatness.hessian import Hessian, largest_eigenpairs
from fedflat.flatness.landscape import loss_surface, random_directions
from fedflat.flatness.objective import Objective, make_objective
from fedflat.models import build_model

MODEL, SHAPE, CLASSES = "fedavg-cnn", (3, 32, 32), 10


def problem(samples: int, batch: int, device: str) -> tuple[Task, torch.Tensor, Objective]:
    """A model, its parameters, and labelled noise."""
    torch.manual_seed(0)
    task = Task(model := build_model(MODEL, SHAPE, CLASSES))
    w = task.flatten(dict(model.named_parameters())).detach().to(device)
    x, y = torch.randn(samples, *SHAPE, device=device), torch.randint(CLASSES, (samples,), device=device)
    return task, w, make_objective(Batch(x, y, torch.ones_like(y, dtype=torch.bool), None), batch)


def seconds(job: Callable[[], Any]) -> float:
    """Of one call that ends with its result on the host."""
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def main() -> None:
    """Print one line for each job and turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--grid", type=int, default=41)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    task, w, data = problem(given.samples, given.batch, given.device)
    jobs = {
        "lambda1": lambda: largest_eigenpairs(Hessian(task, w, data), 1),
        "landscape": lambda: (
            loss_surface(task, w, random_directions(task, [w]), 1.0, given.grid, data).loss.sum().item()
        ),
    }
    print(describe())
    for name, job in jobs.items():
        for turn in (1, 2):
            print(f"{name:10} turn {turn}  {seconds(job):.2f} s", flush=True)


if __name__ == "__main__":
    main()
