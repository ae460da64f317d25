"""How far FedSOL's perturbation reaches: python benchmarks/perturbation.py [--dataset cifar10] [--model fedavg-cnn].

‖ε‖ at ρ = 2 for the head, the body and all of a model, with Λ as in eq. (7) and as in the released code, after some
steps of one client (the 61st by size under lda 0.1) from a global model that was trained for 150 steps on all data.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.func import grad

import fedflat
from fedflat.core.task import Batch
from fedflat.core.vectors import unit
from fedflat.data.augment import normalise
from fedflat.methods.fedsol import kl_loss, part_of, perturbation_strength
from fedflat.runs.build import BuiltRun, build_run

STEPS, WARM_UP = (5, 20, 45), 150


def draw(built: BuiltRun, rows: Tensor, generator: torch.Generator) -> Batch:
    """50 random samples of these rows, without augmentation."""
    client_data, data = built.client_data, built.dataset
    at = rows[torch.randperm(len(rows), generator=generator)[:50]]
    x = normalise(client_data.x[at], data.mean, data.std, client_data.dtype)
    return Batch(x, client_data.y[at], torch.ones_like(at, dtype=torch.bool), None)


def train(built: BuiltRun, w: Tensor, rows: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """SGD with learning rate 0.01 and momentum 0.9."""
    momentum = torch.zeros_like(w)
    for _ in range(steps):
        momentum = 0.9 * momentum + built.task.grad(w, draw(built, rows, generator))
        w = w - 0.01 * momentum
    return w


def reach(method: fedflat.FedSOL, built: BuiltRun, w: Tensor, local: Tensor, batch: Batch) -> float:
    """‖ρ Λ ⊙ unit(∇L_p)‖ at the local model."""
    task, teacher = built.task, built.task.logits(w, batch)
    proximal = grad(lambda v: kl_loss(task, task.logits(v, batch), teacher, batch, method.temperature))(local)
    strength = task.flatten(perturbation_strength(method.lam, method.rho, task.unflatten(local - w)))
    return float((strength * unit(part_of(task, method.perturb, proximal))).norm())


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="fedavg-cnn")
    given = parser.parse_args()
    built = build_run(fedflat.Experiment(**vars(given), partition="lda", alpha=0.1, clients=100, cohort=10))
    generator = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(sorted(built.client_rows, key=len)[60])
    w = train(built, built.initial_params[0], torch.arange(len(built.client_data.y)), WARM_UP, generator)
    print("| Λ | perturbed | " + " | ".join(f"{steps} steps" for steps in STEPS) + " |\n|---|---|---|---|---|")
    ends = [train(built, w, rows, steps, generator) for steps in STEPS]
    batch = draw(built, rows, generator)
    for lam in ("tensor", "dim0"):
        for where in ("head", "body", "all"):
            method = fedflat.FedSOL(lam=lam, perturb=where)
            found = [reach(method, built, w, end, batch) for end in ends]
            print(f"| {lam} | {where} | " + " | ".join(f"{value:.3f}" for value in found) + " |")


if __name__ == "__main__":
    main()
