"""The jobs of docs/performance.md: python benchmarks/jobs.py JOB [JOB ...] [--precision bf16] [--seeds 0 1 2].

Prints one JSON line for each job, the median of `--repetitions`, and at the end a table. `--loop N` also plays N rounds
of the plain PyTorch loop of peers/plain_loop, for the jobs that it has, and gives the ratio of the times of a round.
`--states host` keeps clients' states on the host, as fedflat does where a GPU is too small for them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from plain import blazefl_cnn
from synthetic import images

import fedflat
from fedflat.core.state import count_bytes
from fedflat.engine.memory import estimate_memory
from fedflat.runs.build import build_run
from fedflat.runs.result import software_versions
from fedflat.runs.train import train_to_end
from fedflat.runs.training import Training

FEDSOL = {
    "dataset": "cifar10",
    "model": "fedavg-cnn",
    "partition": "lda",
    "alpha": 0.1,
    "clients": 100,
    "cohort": 10,
    "rounds": 300,
    "local_epochs": 5,
    "batch_size": 50,
    "lr": 0.01,
    "lr_decay": 0.99,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "eval_every": 10,
}
FEDGLOSS = {
    "dataset": "cifar10",
    "model": "lenet-cnn",
    "partition": "dirichlet",
    "alpha": 0.0,
    "clients": 100,
    "cohort": 5,
    "rounds": 10_000,
    "local_epochs": 1,
    "batch_size": 64,
    "lr": 0.01,
    "weight_decay": 4e-4,
    "augment": "crop-flip",
    "eval_every": 10,
}
PFL = {
    "dataset": "cifar10",
    "model": "pfl-cnn",
    "partition": "iid",
    "clients": 1000,
    "cohort": 50,
    "rounds": 1500,
    "local_epochs": 1,
    "batch_size": 10,
    "lr": 0.1,
    "augment": "none",
    "eval_every": 10,
}
BLAZEFL = {
    "dataset": "cifar10",
    "model": blazefl_cnn,
    "partition": "shards",
    "shards": 2,
    "clients": 100,
    "cohort": 100,
    "rounds": 5,
    "local_epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "augment": "none",
    "eval_every": 5,
}
DIGITS = {"rounds": 20, "alpha": 10.0}  # little heterogeneity, so that accuracies of different programs can be compared

JOBS = {
    "fedavg": fedflat.Experiment(method=fedflat.FedAvg(), **FEDSOL),
    "fedsol": fedflat.Experiment(method=fedflat.FedSOL(), **FEDSOL),
    "fedgloss": fedflat.Experiment(method=fedflat.FedGloSS(warmup=2000), **FEDGLOSS),
    "pfl": fedflat.Experiment(method=fedflat.FedAvg(), **PFL),
    "blazefl": fedflat.Experiment(method=fedflat.FedAvg(), **BLAZEFL),
    "digits": fedflat.Experiment(method=fedflat.FedAvg(), **DIGITS),
}
MODELS = ("resnet18-gn", "resnet18", "vgg11", "sl-vit")


def model_job(model: str) -> fedflat.Experiment:
    """FedAvg with a large model in bf16: 10 clients a round, 10 steps each, batch size 50, random images."""
    how = {"cohort": 10, "batch_size": 50, "local_epochs": 1, "lr": 0.01, "rounds": 11, "eval_every": 11}
    return fedflat.Experiment(dataset=images(20, 500, (3, 32, 32)), model=model, precision="bf16", **how)


def made_up(job: fedflat.Experiment, samples: int = 50_000) -> fedflat.Experiment:
    """The job on random images of CIFAR-10's shape, in the same partition: as much work, and nothing to learn."""
    dataset = replace(images(1, samples, (3, 32, 32)), owner=None)
    return replace(job, dataset=dataset)


def measure(name: str, experiment: fedflat.Experiment, home: torch.device | None = None) -> dict[str, Any]:
    """Start-up (data, model, compilation, first round and evaluation) apart from the rest; states at `home`."""
    begin = time.perf_counter()
    built = build_run(experiment)
    training = Training(experiment, built, None, trials=built.trials(experiment, home) if home else None)
    training.play_round()
    training.evaluate()
    _wait()
    ready, steps, first = time.perf_counter(), training.steps, training.round
    result = train_to_end(training, lambda round, rows: None)
    _wait()
    seconds = time.perf_counter() - ready
    rounds = training.round - first
    return {
        "job": name,
        "engine": experiment.engine,
        "precision": experiment.precision,
        "rounds": rounds,
        "seeds": len(experiment.seeds),
        "lanes": getattr(training.engine, "lanes", 1),
        "startup_s": round(ready - begin, 2),
        "seconds": round(seconds, 2),
        "ms_per_round": round(1000 * seconds / max(rounds, 1), 2),
        "client_steps_per_s": round((training.steps - steps) / seconds),
        "full_job_s": round(seconds / max(rounds, 1) * JOBS[name].rounds, 1),
        "accuracy": round(result.last10, 4),
        "estimated_gb": round(estimate(training) / 1e9, 2),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None,
    }


def estimate(training: Training) -> int:
    """Bytes that the run was expected to take on a GPU, its data included."""
    experiment, built = training.experiment, training.built
    client_data, start = built.client_data, built.initial_params[0]
    trials = [(len(built.client_rows), experiment.cohort) for _ in experiment.seeds]
    lanes = getattr(training.engine, "lanes", 1)
    return sum(estimate_memory(experiment.method, built.task, client_data, start, lanes, trials)) + count_bytes(
        (client_data.x, client_data.y)
    )


def repeated(name: str, experiment: fedflat.Experiment, repetitions: int, home: torch.device | None) -> dict[str, Any]:
    """The repetition whose time is the median of all (of an even number, the faster of the two in the middle)."""
    rows = [measure(name, experiment, home) for _ in range(repetitions)]
    return sorted(rows, key=lambda row: row["seconds"])[(repetitions - 1) // 2] | {"repetitions": repetitions}


def beside_loop(name: str, ms_per_round: float, rounds: int) -> dict[str, object]:
    """The time of a round of the plain loop on the same job; nothing for a job that it does not have."""
    script = Path(__file__).parent / "peers" / "plain_loop" / "job.py"
    command = [sys.executable, str(script), name, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        return {}
    if done.returncode:
        sys.exit(done.stderr)
    slow = 1000 * json.loads(done.stdout.splitlines()[-1])["s_per_round"]
    return {"loop_ms_per_round": round(slow, 2), "ratio": round(slow / ms_per_round, 1)}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    columns = (
        "job",
        "precision",
        "seeds",
        "full_job_s",
        "ms_per_round",
        "startup_s",
        "loop_ms_per_round",
        "ratio",
        "peak_gb",
    )
    lines = [[str(row.get(column, "–")) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [list(columns), ["---"] * len(columns), *lines])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Run the named jobs, print one JSON line each, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", choices=JOBS)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--loop", type=int, default=0)
    parser.add_argument("--states", choices=("auto", "host"), default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(json.dumps(software_versions()), flush=True)
    rows = []
    for name in options.jobs:
        experiment = replace(JOBS[name], precision=options.precision, engine=options.engine)
        experiment = replace(experiment, rounds=options.rounds or experiment.rounds, seeds=tuple(options.seeds))
        home = torch.device("cpu") if options.states == "host" else None
        row = repeated(name, experiment, options.repetitions, home)
        row |= beside_loop(name, row["ms_per_round"], options.loop) if options.loop else {}
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row | software_versions()) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
