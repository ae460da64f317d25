"""What attacks do to FedAvg and what defences are worth: python benchmarks/attacks.py.

Trains on digits with every attack and every defence and prints the table of docs/robustness.md: the accuracy in
percent, averaged over the last tenth of the rounds and over seeds.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import fedflat as ff

ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"attackers": 0.0},
    "sign-flip": {"attack": "sign-flip"},
    "sign-flip, strength 1": {"attack": "sign-flip", "attack_strength": 1.0},
    "scale": {"attack": "scale"},
    "noise": {"attack": "noise"},
    "labels": {"attack": "labels"},
}
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip 1x": {"clip_replies": "1x"},
    "median": {"aggregate": "median"},
    "trimmed:0.3": {"aggregate": "trimmed:0.3"},
    "krum:3": {"aggregate": "krum:3"},
}


def experiment(attack: str, defence: str, given: argparse.Namespace) -> ff.Experiment:
    """One cell of the table."""
    setting = {"clients": 20, "cohort": 10, "attackers": 0.2, "rounds": given.rounds, "model": given.model}
    setting |= {"partition": "dirichlet", "alpha": given.alpha, "seeds": tuple(given.seeds), "local_epochs": 2}
    return ff.Experiment(**setting | ATTACKS[attack] | DEFENCES[defence])


def accuracy(training: ff.Experiment) -> float:
    """The mean accuracy over the last tenth of the rounds and over seeds, in percent."""
    rows = ff.run(training).history
    return 100 * statistics.fmean(row["accuracy"] for row in rows if row["round"] > 0.9 * training.rounds)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--alpha", type=float, default=10.0)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", choices=DEFENCES, default=list(DEFENCES))
    given = parser.parse_args()
    print("| attack |", " | ".join(given.defences), "|")
    print("|---|" + "---|" * len(given.defences))
    for attack in given.attacks:
        cells = (f"{accuracy(experiment(attack, defence, given)):.1f}" for defence in given.defences)
        print(f"| {attack} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
