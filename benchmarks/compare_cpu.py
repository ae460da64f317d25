"""One FedAvg job on digits with fedflat, a plain PyTorch loop, Flower and pfl: python benchmarks/compare_cpu.py.

20 clients, 5 in each round, 5 local epochs of batch size 32, evaluation after every round. Every program runs in a
process of its own, in turn, several times with other seeds; the table shows medians. Flower and pfl need an environment
of their own (`make bench` creates it); without it their rows say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import JOBS
from machine import describe
from plain import Job, save_job

from fedflat.data.augment import normalise
from fedflat.runs.build import build_run

HERE = Path(__file__).resolve().parent
PEERS = {"plain_loop": "plain PyTorch loop", "flower": "Flower simulation", "pfl": "pfl"}  # folders of peers/, rows
OWN_ENVIRONMENT = HERE.parent / ".venv-bench" / "bin" / "python"


class Program(NamedTuple):
    """One row: a script with its arguments, the interpreter and package it needs, and how many models it trains."""

    name: str
    script: str
    python: str = sys.executable
    package: str = "fedflat"
    engine: str = ""
    models: int = 1

    def command(self, job: str, rounds: int, repetition: int) -> list[str]:
        """How to run it; every repetition has seeds of its own."""
        seeds = [str(self.models * repetition + i) for i in range(self.models)]
        arguments = {
            "fedflat_job.py": ["--engine", self.engine, "--rounds", str(rounds), "--seeds", *seeds],
            "peers/plain_loop/job.py": ["digits", "--device", "cpu", "--rounds", str(rounds), "--seed", *seeds],
        }
        return [self.python, str(HERE / self.script), *arguments.get(self.script, [job])]

    def missing(self) -> str:
        """Why it cannot run, or nothing."""
        if not Path(self.python).exists():
            return "not installed: make bench installs it"
        test = subprocess.run([self.python, "-c", f"import {self.package}"], capture_output=True, text=True)
        return f"not installed: {test.stderr.strip().splitlines()[-1]}" if test.returncode else ""


def programs(other: str) -> list[Program]:
    """All rows; `other` is the interpreter of the environment with Flower and pfl."""
    return [
        Program("fedflat, batched", "fedflat_job.py", engine="batched"),
        Program("fedflat, batched, 3 seeds at once", "fedflat_job.py", engine="batched", models=3),
        Program("fedflat, sequential", "fedflat_job.py", engine="sequential"),
        Program("plain PyTorch loop", "peers/plain_loop/job.py"),
        Program("Flower simulation", "peers/flower/job.py", other, "flwr.simulation, ray"),
        Program("pfl", "peers/pfl/job.py", other, "pfl"),
    ]


def write_job(path: str, rounds: int, seed: int) -> None:
    """The job as a file for programs that do not know fedflat."""
    experiment = replace(JOBS["digits"], device="cpu")
    data = build_run(experiment)
    dataset, owner = data.dataset, torch.full_like(data.dataset.y, -1)
    for client, rows in enumerate(data.client_rows):
        owner[torch.from_numpy(rows)] = client
    x, x_test = (normalise(t, dataset.mean, dataset.std) for t in (dataset.x, dataset.x_test))
    how = (experiment.cohort, experiment.epochs, experiment.batch_size, experiment.lr, seed)
    save_job(path, Job(x, dataset.y, owner, x_test, dataset.y_test, rounds, *how))


def run(command: list[str], threads: int) -> dict[str, Any]:
    """What a script printed in its last line, or why it failed."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"problem": f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(rows: list[Program], rounds: int, repetitions: int, threads: int) -> dict[str, list[dict[str, Any]]]:
    """All programs in turn, again and again, so that a busy moment of the machine strikes all of them."""
    missing = {row.name: row.missing() for row in rows}
    records: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(repetitions):
            job = f"{folder}/{repetition}.npz"
            write_job(job, rounds, repetition)
            for row in rows:
                problem = missing[row.name]
                record = {"problem": problem} if problem else run(row.command(job, rounds, repetition), threads)
                records[row.name].append(record)
                print(f"{repetition + 1}/{repetitions} {row.name}: {short(record)}", file=sys.stderr, flush=True)
    return records


def short(record: dict[str, Any]) -> str:
    return record.get("problem") or f"{record['s_per_round']:.4f} s per round"


def medians(row: Program, records: list[dict[str, Any]]) -> dict[str, float]:
    """Times per round and model trained; processor time is missing where it is spent in other processes."""
    names = [name for name in ("s_per_round", "cpu_s_per_round") if name in records[0]]
    return {name: statistics.median(r[name] for r in records) / row.models for name in names}


def right(records: list[dict[str, Any]]) -> float:
    """Mean accuracy of the last quarter of the rounds."""
    tails = [r["accuracies"][-max(1, len(r["accuracies"]) // 4) :] for r in records]
    return statistics.fmean(value for tail in tails for value in tail)


def line(row: Program, records: list[dict[str, Any]], reference: dict[str, float]) -> str:
    """One line of the table."""
    problems = [r["problem"] for r in records if "problem" in r]
    if problems:
        return f"| {row.name} | {problems[0]} | | | | | |"
    times, version = medians(row, records), records[0].get("version", f"torch {torch.__version__}")
    spread = [r["s_per_round"] / row.models for r in records]
    ratios = [f"{times[name] / reference[name]:.2f}" if name in times else "–" for name in reference]
    startup = statistics.median(r["startup_s"] for r in records)
    cells = [row.name, version, f"{times['s_per_round']:.3f} ({min(spread):.3f} to {max(spread):.3f})", *ratios]
    return f"| {' | '.join(cells)} | {startup:.1f} | {right(records):.3f} |"


def table(rows: list[Program], records: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown; times are per round and model trained, ratios to the first row."""
    reference = medians(rows[0], records[rows[0].name])
    head = "| program | version | s per round and model | ratio | ratio of processor time | start-up s | accuracy |"
    return "\n".join([head, "|---" * 7 + "|", *(line(row, records[row.name], reference) for row in rows)])


def heading(before: dict[str, Any], load_after: float, threads: int) -> str:
    """Where and when this was measured."""
    where = f"{before['date']}, {before['cpu']}, {before['cores']} cores, threads per process: {threads}"
    return f"{where}, load {before['load']} before and {load_after} after; torch {before['torch']}."


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=JOBS["digits"].rounds)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each process; Flower runs a process per core")
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=list(PEERS), help="beside which fedflat is measured"
    )
    parser.add_argument("--python", default=str(OWN_ENVIRONMENT), help="interpreter that has Flower and pfl")
    parser.add_argument("--out", type=Path, help="write all measurements to this JSON file")
    given = parser.parse_args()
    skipped = [PEERS[name] for name in PEERS if name not in given.peers]
    rows, before = [row for row in programs(given.python) if row.name not in skipped], describe()
    records = measure(rows, given.rounds, given.repetitions, given.threads)
    print(heading(before, describe()["load"], given.threads), end=" ")
    print(f"{given.rounds} rounds, median (least to most) of {given.repetitions} repetitions.\n")
    print(table(rows, records))
    if given.out:
        given.out.write_text(json.dumps({"machine": before, "records": records}))


if __name__ == "__main__":
    main()
