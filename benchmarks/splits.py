"""How unequal lda's splits of CIFAR-10 are: python benchmarks/splits.py [--alpha 0.1].

Of partition seeds 0 to 5 and of FedSOL's own split: the share of a client's most frequent class, weighted by samples,
and how far the mix of classes of a round's ten clients is from uniform (total variation, mean of 300 rounds), clients
weighted by samples and equally. Our cohorts are those of seed 0, FedSOL's are its code's: drawn by the round's number.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedflat.data.lda import lda, lda_released
from fedflat.data.partition import class_counts
from fedflat.engine.participation import choose_cohort

LABELS, CLIENTS, COHORT, ROUNDS = np.repeat(np.arange(10), 5000), 100, 10, 300


def top_share(held: np.ndarray) -> float:
    """Σ_k max_c n_kc / Σ_k n_k."""
    return float(held.max(1).sum() / held.sum())


def imbalance(held: np.ndarray, cohorts: list[list[int]], equally: bool) -> float:
    """The mean of ½ Σ_c |p_c − 1/C|, p the mix of a cohort's classes."""
    rows = held / held.sum(1, keepdims=True) if equally else held
    mixes = [rows[who].sum(0) / rows[who].sum() for who in cohorts]
    return float(np.mean([np.abs(mix - 1 / len(mix)).sum() / 2 for mix in mixes]))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpha", type=float, default=0.1)
    alpha = parser.parse_args().alpha
    ours = [choose_cohort(0, r, CLIENTS, COHORT) for r in range(ROUNDS)]
    theirs = [np.random.RandomState(r).choice(CLIENTS, COHORT, replace=False).tolist() for r in range(ROUNDS)]
    splits = {f"lda, seed {seed}": (lda(LABELS, CLIENTS, alpha, seed), ours) for seed in range(6)}
    splits["lda-released, seed 19940817"] = (lda_released(LABELS, CLIENTS, alpha, 19940817), theirs)
    print("| split | share of top class | imbalance by samples | equally |\n|---|---|---|---|")
    for name, (parts, cohorts) in splits.items():
        held = class_counts(LABELS, parts, 10)
        found = (top_share(held), imbalance(held, cohorts, False), imbalance(held, cohorts, True))
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in found) + " |")


if __name__ == "__main__":
    main()
