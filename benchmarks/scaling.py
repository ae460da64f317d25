"""How the time of a round grows with population, cohort and model: python benchmarks/scaling.py [--device cuda].

FedAvg on random images: the same samples per client, one thing changed at a time, all else as in BASE. Rounds of all
points of a sweep are timed in turn; the table and the picture show medians. `--out` keeps the numbers, `--plot` draws
them, `--read` draws numbers kept before instead of measuring.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from machine import describe
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from synthetic import Timed, images, in_turn

import fedflat


class Scale(NamedTuple):
    """One device's sweeps: the points of each, and the shape and number of a client's images."""

    shape: tuple[int, int, int]
    samples: int
    batch_size: int
    cohort: int
    model: str
    cohorts: tuple[int, ...]
    models: tuple[str, ...]
    populations: tuple[int, ...] = (100, 1_000, 10_000, 100_000)


SCALES = {
    "cpu": Scale((1, 8, 8), 32, 16, 5, "digits-cnn", (1, 2, 5, 10, 20), ("mlp", "digits-cnn", "fedavg-cnn")),
    "cuda": Scale(
        (3, 32, 32),
        20,
        10,
        10,
        "fedavg-cnn",
        (1, 10, 50, 100),
        ("mlp", "fedavg-cnn", "lenet-cnn", "vgg11", "resnet18-gn"),
    ),
}
TITLES = {"population": "clients in all", "cohort": "clients in a round", "model": "parameters of the model"}


def experiment(scale: Scale, population: int, cohort: int, model: str, device: str, rounds: int) -> fedflat.Experiment:
    """FedAvg with these numbers."""
    data = images(population, scale.samples, scale.shape)
    how = {"batch_size": scale.batch_size, "local_epochs": 1, "lr": 0.01, "rounds": rounds + 1, "device": device}
    return fedflat.Experiment(dataset=data, model=model, cohort=cohort, **how)


def points(scale: Scale, sweep: str) -> list[tuple[int, int, str]]:
    """(population, cohort, model) of every point of a sweep."""
    least = scale.populations[0]
    return {
        "population": [(n, scale.cohort, scale.model) for n in scale.populations],
        "cohort": [(max(least, k), k, scale.model) for k in scale.cohorts],
        "model": [(least, scale.cohort, name) for name in scale.models],
    }[sweep]


def measure(scale: Scale, sweep: str, device: str, rounds: int) -> list[dict[str, Any]]:
    """One sweep; `value` is what is changed."""
    where = points(scale, sweep)
    timed = [Timed(experiment(scale, *point, device, rounds)) for point in where]
    in_turn(timed, rounds)
    return [_record(sweep, point, one) for point, one in zip(where, timed, strict=True)]


def _record(sweep: str, point: tuple[int, int, str], one: Timed) -> dict[str, Any]:
    """The numbers of one point."""
    parameters = one.training.built.task.size
    value = {"population": point[0], "cohort": point[1], "model": parameters}[sweep]
    medians = {"s_per_round": statistics.median(one.times.wall), "cpu_s_per_round": statistics.median(one.times.cpu)}
    return {"sweep": sweep, "value": value, "model": point[2], **medians, "startup_s": one.startup}


def table(records: list[dict[str, Any]]) -> str:
    """Markdown; the ratio is to the first point of the sweep."""
    lines = ["| sweep | value | model | ms per round | ratio | ratio of processor time | start-up s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for r in records:
        first = next(f for f in records if f["sweep"] == r["sweep"])
        ratios = " | ".join(f"{r[name] / first[name]:.2f}" for name in ("s_per_round", "cpu_s_per_round"))
        what = f"{r['sweep']} | {r['value']:,} | {r['model']} | {1000 * r['s_per_round']:.2f}"
        lines.append(f"| {what} | {ratios} | {r['startup_s']:.1f} |")
    return "\n".join(lines)


def draw(kept: dict[str, Any], path: Path) -> None:
    """One panel for each sweep."""
    figure, axes = plt.subplots(1, len(TITLES), figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, sweep in zip(axes, TITLES, strict=True):
        _panel(axis, sweep, [r for r in kept["records"] if r["sweep"] == sweep])
    axes[0].set_ylabel("milliseconds per round")
    machine = kept["machine"]
    figure.suptitle(f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, {machine['date']}", fontsize=9)
    figure.savefig(path, dpi=110)


def _panel(axis: Axes, sweep: str, records: list[dict[str, Any]]) -> None:
    """Time against what is changed, from zero for the eye."""
    records = sorted(records, key=lambda r: r["value"])
    axis.plot([r["value"] for r in records], [1000 * r["s_per_round"] for r in records], "o-")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_xlabel(TITLES[sweep])
    axis.grid(alpha=0.3)
    if sweep == "model":
        axis.margins(x=0.25, y=0.1)
        for r in records:
            axis.annotate(
                r["model"],
                (r["value"], 1000 * r["s_per_round"]),
                fontsize=7,
                xytext=(0, 7),
                ha="center",
                textcoords="offset points",
            )


def main() -> None:
    """Measure or read, print one table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SCALES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sweeps", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--most-clients", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--read", type=Path)
    given = parser.parse_args()
    scale = SCALES[given.device]
    scale = scale._replace(populations=tuple(n for n in scale.populations if n <= given.most_clients))
    kept = json.loads(given.read.read_text()) if given.read else {"machine": describe(), "records": []}
    for sweep in [] if given.read else given.sweeps:
        kept["records"] += measure(scale, sweep, given.device, given.rounds)
    print(json.dumps(kept["machine"]), table(kept["records"]), sep="\n")
    if given.out:
        given.out.write_text(json.dumps(kept, indent=1))
    if given.plot:
        draw(kept, given.plot)


if __name__ == "__main__":
    main()
