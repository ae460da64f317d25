"""Does bf16 cost accuracy? python benchmarks/precision.py [JOB ...] [--precisions tf32 bf16] [--seeds 0 1 2].

Trains jobs of benchmarks/jobs.py with several seeds in each precision and prints, per job: accuracy over the last tenth
of the evaluations in each, and the mean and standard error of the paired differences to the first precision. `--out`
keeps a JSON line for each job and precision; a second call with the same file trains only what is missing.
`--made-up 8` takes random images instead of CIFAR-10, to try the script out.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jobs import JOBS, made_up
from machine import describe

import fedflat

Accuracies = dict[tuple[str, str], list[float]]  # of all seeds, by job and precision


def trained(name: str, precision: str, given: argparse.Namespace) -> list[float]:
    """The accuracy of every seed over the last tenth of the evaluations."""
    job = replace(JOBS[name], precision=precision, seeds=tuple(given.seeds), device=given.device)
    if given.made_up:
        job = replace(
            made_up(job, given.made_up), partition="iid", clients=2, cohort=2, local_epochs=None, local_steps=1
        )
    if given.rounds:
        job = replace(job, rounds=given.rounds, eval_every=min(job.eval_every, given.rounds))
    return list(fedflat.run(job).last10_per_seed)


def line(name: str, precisions: list[str], found: Accuracies) -> str:
    """One line of the table."""
    first = found[name, precisions[0]]
    cells = [f"{mean(found[name, p]):.2%}" for p in precisions]
    for precision in precisions[1:]:
        differences = [b - a for a, b in zip(first, found[name, precision], strict=True)]
        error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
        cells.append(f"{100 * mean(differences):+.2f} ± {100 * error:.2f}")
    return f"| {name} | {len(first)} | " + " | ".join(cells) + " |"


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["fedavg", "fedsol"])
    parser.add_argument("--precisions", nargs="+", default=["tf32", "bf16"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, help="fewer rounds than the job has")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--made-up", type=int, default=0, metavar="SAMPLES")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    kept: list[dict[str, Any]] = [json.loads(text) for text in lines]
    found: Accuracies = {(row["job"], row["precision"]): row["accuracies"] for row in kept}
    for name, precision in ((n, p) for n in given.jobs for p in given.precisions if (n, p) not in found):
        found[name, precision] = trained(name, precision, given)
        row = {"job": name, "precision": precision, "seeds": given.seeds, "accuracies": found[name, precision]}
        print(json.dumps(row), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(row | describe()) + "\n")
    others = [f"{p} − {given.precisions[0]}, points" for p in given.precisions[1:]]
    head = ["job", "seeds", *given.precisions, *others]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    print(*(line(name, given.precisions, found) for name in given.jobs), sep="\n")


if __name__ == "__main__":
    main()
