"""Attacks and defences in a federation of real processes: .venv-flower/bin/python benchmarks/attacks_federation.py.

Starts a SuperLink and five SuperNodes with TLS and node keys on 127.0.0.1, one of them an attacker, and trains FedAvg
on digits once for each attack and defence. Prints the accuracy after the last round in percent.
Every process that is started is stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedflat as ff
from fedflat.data.load import load_dataset

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
from processes import Federation, wait_until

NODES = 5
ATTACKS: dict[str, dict[str, Any]] = {"none": {}, "sign-flip": {"attackers": 1 / NODES, "attack": "sign-flip"}}
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip 1x": {"clip_replies": "1x"},
    "median": {"aggregate": "median"},
}
SETTING = {"clients": NODES, "cohort": NODES, "partition": "iid", "model": "mlp", "local_epochs": 2, "batch_size": 32}


def train(federation: Federation, name: str, options: dict[str, Any], rounds: int) -> float:
    """Train one run and return its last accuracy in percent."""
    experiment = ff.Experiment(dataset="npz:digits.npz", rounds=rounds, eval_every=rounds, **SETTING | options)
    out = federation.app(name, experiment)
    federation.run(name)
    wait_until((out / "result.json").exists, f"the end of {name}", federation.logs)
    return 100 * json.loads((out / "result.json").read_text())["final_accuracy"]


def main() -> None:
    """Start the federation, print the table row by row, stop the federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder) / "app", nodes=NODES)
        digits = load_dataset("digits")
        arrays = {name: getattr(digits, name) for name in ("x", "y", "x_test", "y_test")}
        np.savez(federation.folder / "digits.npz", **arrays)
        try:
            federation.start_link()
            federation.register(*range(NODES))
            for node in range(NODES):
                federation.start_node(node)
            print("| attack |", " | ".join(DEFENCES), "|\n|---|" + "---|" * len(DEFENCES), flush=True)
            for attack, attacked in ATTACKS.items():
                names = [f"{attack}-{number}" for number in range(len(DEFENCES))]
                pairs = zip(names, DEFENCES.values(), strict=True)
                cells = [f"{train(federation, name, attacked | defence, given.rounds):.1f}" for name, defence in pairs]
                print(f"| {attack} |", " | ".join(cells), "|", flush=True)
        finally:
            federation.stop()


if __name__ == "__main__":
    main()
