"""Both engines on the CPU for several models: python benchmarks/engines.py [--models mlp digits-cnn] [--rounds N].

Five clients in each round, five steps each at least, one seed. Prints, per model, the median seconds of a round with
either engine and how many times faster the batched one is, by the clock and in processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe
from synthetic import Timed, images, in_turn

import fedflat

ENGINES = ("sequential", "batched")


class Case(NamedTuple):
    """Images, samples per client and batch size with which a model is trained."""

    shape: tuple[int, int, int]
    samples: int
    batch_size: int
    epochs: int = 1


CASES = {
    "mlp": Case((1, 8, 8), 71, 32, 5),
    "digits-cnn": Case((1, 8, 8), 71, 32, 5),
    "fedavg-cnn": Case((3, 32, 32), 250, 50),
    "lenet-cnn": Case((3, 32, 32), 320, 64),
    "vgg11": Case((3, 32, 32), 50, 10),
    "resnet18": Case((3, 32, 32), 50, 10),
}


def measure(model: str, rounds: int, method: fedflat.Method) -> dict[str, Any]:
    """One line of the table."""
    case = CASES[model]
    setting = {"dataset": images(10, case.samples, case.shape), "model": model, "cohort": 5, "device": "cpu"}
    setting |= {"batch_size": case.batch_size, "local_epochs": case.epochs, "lr": 0.01, "rounds": rounds + 1}
    timed = [Timed(fedflat.Experiment(method=method, engine=engine, **setting)) for engine in ENGINES]
    in_turn(timed, rounds)
    record: dict[str, Any] = {"model": model, "batch": case.batch_size}
    record["steps"] = -(-case.samples // case.batch_size) * case.epochs
    for clock in ("wall", "cpu"):
        slow, fast = (statistics.median(getattr(one.times, clock)) for one in timed)
        record |= {f"sequential_{clock}_s": slow, f"batched_{clock}_s": fast, f"{clock}_gain": slow / fast}
    return record


def line(record: dict[str, Any]) -> str:
    """A line of the Markdown table."""
    numbers = [record[name] for name in ("sequential_wall_s", "batched_wall_s", "wall_gain", "cpu_gain")]
    cells = [record["model"], str(record["batch"]), str(record["steps"]), *(f"{n:.3g}" for n in numbers)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", choices=fedflat.METHODS, default="fedavg")
    parser.add_argument("--out", type=Path, help="write the measurements to this JSON file")
    given = parser.parse_args()
    print(json.dumps(describe()))
    print("| model | batch | steps per client | sequential s | batched s | faster by | faster by, processor time |")
    print("|---|---|---|---|---|---|---|")
    records = []
    for model in given.models:
        records.append(measure(model, given.rounds, fedflat.METHODS[given.method]()))
        print(line(records[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"machine": describe(), "records": records}))


if __name__ == "__main__":
    main()
