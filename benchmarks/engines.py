"""Both engines and a plain loop on the CPU, for several models: python benchmarks/engines.py [--models mlp].

Five clients in each round, five steps each at least, one seed. Prints, per model, the median seconds of a round with
either engine and with the loop of peers/plain_loop, and how many times as fast as the loop the engine is that
`--engine auto` takes, by the clock and in processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe
from synthetic import Timed, Times, images, in_turn

import fedflat
from fedflat.models import build_model
from fedflat.runs.build_engine import choose_engine

sys.path.insert(0, str(Path(__file__).parent / "peers" / "plain_loop"))
from job import Loop

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


class TimedLoop:
    """The plain loop with the same model, whose rounds are timed."""

    def __init__(self, experiment: fedflat.Experiment, shape: tuple[int, int, int]) -> None:
        self.loop, self.times = Loop(experiment, partial(build_model, experiment.model, shape, 10)), Times([], [])
        self.loop.play_round(0)

    def play(self) -> None:
        """One round."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.loop.play_round(0)
        self.times.wall.append(time.perf_counter() - wall)
        self.times.cpu.append(time.process_time() - cpu)


def measure(model: str, rounds: int, method: fedflat.Method) -> dict[str, Any]:
    """One line of the table."""
    case = CASES[model]
    setting = {"dataset": images(10, case.samples, case.shape), "model": model, "cohort": 5, "device": "cpu"}
    setting |= {"batch_size": case.batch_size, "local_epochs": case.epochs, "lr": 0.01, "rounds": rounds + 1}
    timed = {name: Timed(fedflat.Experiment(method=method, engine=name, **setting)) for name in ENGINES}
    programs = timed | {"loop": TimedLoop(fedflat.Experiment(**setting), case.shape)}
    in_turn([*programs.values()], rounds)
    training = timed["batched"].training
    chosen = choose_engine(fedflat.Experiment(**setting), training.built.task, training.built.client_data.y.device)
    record: dict[str, Any] = {"model": model, "batch": case.batch_size, "auto": chosen}
    record["steps"] = -(-case.samples // case.batch_size) * case.epochs
    for clock in ("wall", "cpu"):
        seconds = {name: statistics.median(getattr(one.times, clock)) for name, one in programs.items()}
        record |= {f"{name}_{clock}_s": value for name, value in seconds.items()}
        record |= {f"{clock}_gain": seconds["loop"] / seconds[chosen]}
    return record


def line(record: dict[str, Any]) -> str:
    """A line of the Markdown table."""
    numbers = [record[name] for name in ("sequential_wall_s", "batched_wall_s", "loop_wall_s", "wall_gain", "cpu_gain")]
    words = [record["model"], str(record["batch"]), str(record["steps"])]
    cells = [*words, *(f"{n:.3g}" for n in numbers[:3]), record["auto"], *(f"{n:.3g}" for n in numbers[3:])]
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
    print("| model | batch | steps | sequential s | batched s | loop s | auto | loop / auto | processor time |")
    print("|---" * 9 + "|")
    records = []
    for model in given.models:
        records.append(measure(model, given.rounds, fedflat.METHODS[given.method]()))
        print(line(records[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"machine": describe(), "records": records}))


if __name__ == "__main__":
    main()
