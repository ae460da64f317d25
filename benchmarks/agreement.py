"""How far methods drift apart between engines: python benchmarks/agreement.py [METHOD ...] [--device cuda].

Three rounds on digits in fp32 with two seeds, by the batched engine on the device and by the sequential one on the CPU;
prints ‖w − w'‖ / ‖w'‖ of all parameters. Methods are named as for fedflat compare; all of them unless given.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from machine import describe

import fedflat
from fedflat.cli.arguments import parse_method
from fedflat.methods import METHODS
from fedflat.runs.build import build_run
from fedflat.runs.training import Training

BASE = {"rounds": 3, "cohort": 4, "seeds": (0, 1), "local_epochs": 2, "lr": 0.02, "momentum": 0.5, "weight_decay": 1e-3}


def trained(experiment: fedflat.Experiment) -> torch.Tensor:
    """The parameters of all seeds after the last round."""
    training = Training(experiment, build_run(experiment), None)
    for _ in range(experiment.rounds):
        training.play_round()
    return torch.cat([trial.server.params.double().cpu() for trial in training.trials])


def difference(method: str, device: str) -> float:
    """‖w − w'‖ / ‖w'‖."""
    base = fedflat.Experiment(method=parse_method(method), precision="fp32", **BASE)
    fast = trained(replace(base, device=device, engine="batched"))
    plain = trained(replace(base, device="cpu", engine="sequential"))
    return float((fast - plain).norm() / plain.norm())


def main() -> None:
    """Print one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    print(describe())
    for method in given.methods:
        print(f"{method:20} {difference(method, given.device):.1e}", flush=True)


if __name__ == "__main__":
    main()
