"""The GPU table of docs/performance.md in one go: python benchmarks/gpu_table.py [--rows ROW ...] [--out FILE].

Prints one Markdown table. `--out` keeps a JSON line for each row; a second call with the same file measures only rows
that are missing, so that the table can be made in parts. A row that fails says why. Seconds are those of all rounds,
without start-up (data, compilation, first round, first evaluation). `--tiny --device cpu` runs every row in its
smallest form.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import JOBS, MODELS, made_up, measure, model_job
from machine import describe

import fedflat
from fedflat.runs.config import dump_yaml, experiment_to_dict

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # where compiled steps are kept


class Options(NamedTuple):
    """What every row is told."""

    device: str
    tiny: bool


Row = Callable[[Options], dict[str, Any]]


def job_row(name: str, precision: str = "bf16", seeds: int = 1) -> Row:
    """A job of jobs.py, all its rounds, start-up apart."""

    def row(options: Options) -> dict[str, Any]:
        job = replace(JOBS[name], precision=precision, seeds=tuple(range(seeds)), device=options.device)
        return measure(name, smallest(job) if options.tiny else job)

    return row


def model_row(model: str) -> Row:
    """Client steps per second of a model: 10 clients a round, 10 steps each, batch size 50, random images."""

    def row(options: Options) -> dict[str, Any]:
        job = replace(model_job(model), device=options.device)
        return measure("fedavg", smallest(job) if options.tiny else job)

    return row


def smallest(job: fedflat.Experiment) -> fedflat.Experiment:
    """The job in two rounds of one step of two clients with two images each."""
    tiny = {"cohort": 2, "clients": 4, "batch_size": 2, "rounds": 2, "local_epochs": None, "local_steps": 1}
    return replace(made_up(job, 8), partition="iid", precision="auto", eval_every=2, **tiny)


def commands(options: Options) -> dict[str, Any]:
    """Seconds of whole commands of FedAvg: one round never compiled before, one round again, then all rounds."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        job = replace(JOBS["fedavg"], device=options.device, precision="bf16")
        if options.tiny:
            job = fedflat.Experiment(model="mlp", cohort=2, local_steps=1, rounds=2, device=options.device)
        config.write_text(dump_yaml(experiment_to_dict(job)))
        environment = os.environ | {name: f"{folder}/{name}" for name in CACHES}
        first, again, whole = (_command(config, rounds, environment) for rounds in (1, 1, job.rounds))
    return {"first_s": first, "again_s": again, "whole_s": whole, "rounds": job.rounds}


def _command(config: Path, rounds: int, environment: dict[str, str]) -> float:
    """Seconds from the start of `fedflat run` to its end."""
    command = [sys.executable, "-m", "fedflat", "run", "--config", str(config), "--rounds", str(rounds)]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--out", f"{folder}/run"], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return round(time.perf_counter() - begin, 1)


ROWS: dict[str, tuple[str, Row]] = {
    "commands": ("FedAvg, the command from its start to its end", commands),
    "fedavg": ("FedAvg, CIFAR-10 lda 0.1, 10 of 100 clients, 300 rounds", job_row("fedavg")),
    "fedavg-tf32": ("the same in tf32", job_row("fedavg", "tf32")),
    "fedavg-seeds": ("the same, three seeds together", job_row("fedavg", seeds=3)),
    "fedsol": ("FedSOL (head), the same", job_row("fedsol")),
    "fedgloss": ("FedGloSS with SAM clients, lenet-cnn, α = 0, 10,000 rounds", job_row("fedgloss")),
    "pfl": ("pfl-research's CIFAR-10 job, 1,500 rounds", job_row("pfl")),
    "blazefl": ("BlazeFL's CIFAR-10 job, 5 rounds", job_row("blazefl", "tf32")),
    **{model: (f"{model}, 10 clients a round, batch size 50", model_row(model)) for model in MODELS},
}


def line(name: str, row: dict[str, Any]) -> str:
    """One or, for the commands, three lines of the table."""
    title = ROWS[name][0]
    if "problem" in row:
        return f"| {title} | failed: {row['problem']} | | | | |"
    if name == "commands":
        parts = {"one round, never compiled": "first_s", "one round, compiled before": "again_s"}
        parts[f"{row['rounds']} rounds, compiled before"] = "whole_s"
        return "\n".join(f"| {title}: {part} | bf16 | {row[key]} | | | |" for part, key in parts.items())
    seconds = "–" if name in MODELS else row["full_job_s"]
    numbers = (seconds, f"{row['client_steps_per_s']:,}", row["startup_s"], row["peak_gb"] or "–")
    return f"| {title} | {row['precision']} | " + " | ".join(map(str, numbers)) + " |"


def measured(name: str, options: Options) -> dict[str, Any]:
    """The numbers of a row, or the problem in one line."""
    try:
        return ROWS[name][1](options)
    except Exception as error:
        return {"problem": " ".join(str(error).split())[:200]}
    finally:
        gc.collect()
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def main() -> None:
    """Measure the rows that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kept = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    found = {row["row"]: row for row in map(json.loads, kept)}
    for name in (name for name in given.rows if name not in found):
        found[name] = {"row": name, **measured(name, Options(given.device, given.tiny)), **describe()}
        print(json.dumps(found[name]), file=sys.stderr, flush=True)
        if given.out and "problem" not in found[name]:
            with given.out.open("a") as file:
                file.write(json.dumps(found[name]) + "\n")
    print("| job | precision | seconds | client steps/s | start-up s | memory GB |\n|---|---|---|---|---|---|")
    print(*(line(name, found[name]) for name in ROWS if name in found), sep="\n")


if __name__ == "__main__":
    main()
