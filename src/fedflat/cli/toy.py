"""fedflat toy: FedSOL's two-dimensional example (Lee et al., 2024, Appendix L), where FedProx and FedSOL come to rest.

Weights (u, v), global model (0, 0), local optimum o = (u_l, v_l), δ > 0:

    L_local = ½ (u − u_l)² + δ/2 (v − v_l)²,   L_p = ½ (u² + v²)

FedProx follows ∇L_local + μ ∇L_p and rests at (u_l / (1 + μ), δ v_l / (δ + μ)), pulled off the line to o where δ ≠ 1.
FedSOL follows ∇L_local at w + ρ w / ‖w‖ and rests at (1 − ρ / ‖o‖) o: on the line to o, at distance ρ from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedflat.cli.arguments import parse_options
from fedflat.core.local_training import SGD, local_step, start_local_training
from fedflat.core.method import Message, Method
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import norm, unit
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsol import FedSOL
from fedflat.options import check_picture

OPTIMUM = torch.tensor([1.0, 1.0], dtype=torch.float64)


DELTA = 0.1


LR, STEPS = 0.01, 4000  # of the paper's Figure 13


NOTHING = Batch(torch.zeros(0), torch.zeros(0), torch.zeros(0), None)


STRENGTHS = (0.1, 0.3, 1.0)  # shown as μ of FedProx and as ρ of FedSOL


class ToyTask(Task):
    """L_local as a task; there are no samples."""

    def __init__(self, optimum: Tensor = OPTIMUM, delta: float = DELTA) -> None:
        super().__init__(nn.ParameterDict({"w": nn.Parameter(torch.zeros_like(optimum))}))
        self.optimum, self.curvature = optimum, torch.tensor([1.0, delta], dtype=optimum.dtype)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """½ (u − u_l)² + δ/2 (v − v_l)²."""
        return 0.5 * (self.curvature * (w - self.optimum) ** 2).sum(-1)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """(u − u_l, δ (v − v_l))."""
        return self.curvature * (w - self.optimum)


def toy_fedprox(mu: float) -> FedProx:
    """The proximal loss as a part of the local one."""
    return FedProx(mu=mu)


def toy_fedsol(rho: float) -> FedSOL:
    """The proximal loss as a perturbation of fixed length."""
    return FedSOL(rho=rho, lam="fixed", perturb="all", proximal="l2")


def toy_path(method: Method, task: ToyTask, lr: float = LR, steps: int = STEPS) -> Tensor:
    """The local weights after 0, 1, …, `steps` steps from the global model, [steps + 1, 2]."""
    msg = Message(torch.zeros_like(task.optimum))
    sgd = SGD(torch.tensor(lr, dtype=msg.params.dtype), 0.0, 0.0)
    carry, seen = start_local_training(msg, ()), [msg.params]
    for _ in range(steps):
        carry = local_step(method, task, sgd, carry, NOTHING, msg)
        seen.append(carry.w)
    return torch.stack(seen)


def fedprox_rest(task: ToyTask, mu: float) -> Tensor:
    """Where FedProx's direction is 0."""
    return task.curvature * task.optimum / (task.curvature + mu)


def fedsol_rest(task: ToyTask, rho: float) -> Tensor:
    """Where FedSOL's direction is 0, for ρ < ‖o‖."""
    return task.optimum - rho * unit(task.optimum)


def off_line(w: Tensor, task: ToyTask) -> float:
    """Distance of w from the line through the global model and the local optimum."""
    along = unit(task.optimum)
    return float(norm(w - (w @ along) * along))


def print_toy(out: Path) -> None:
    """Print where both methods come to rest and draw their paths to the PNG file `out`."""
    check_picture(out)
    task = ToyTask()
    runs = [("FedProx", "μ", s, fedprox_rest(task, s), toy_path(toy_fedprox(s), task)) for s in STRENGTHS]
    runs += [("FedSOL", "ρ", s, fedsol_rest(task, s), toy_path(toy_fedsol(s), task)) for s in STRENGTHS]
    table = Table("method", "rests at", "off the line", "to the optimum", f"after {STEPS} steps")
    for name, letter, strength, rest, seen in runs:
        distances = (f"{off_line(rest, task):.4f}", f"{float(norm(rest - task.optimum)):.4f}")
        table.add_row(
            f"{name} {letter} = {strength:g}", _print_rest_points(rest), *distances, _print_rest_points(seen[-1])
        )
    console = Console()
    console.print(table) if console.is_terminal else Console(width=120).print(table)
    _draw_paths(task, runs, out)
    print(f"paths drawn in {out}")


def _print_rest_points(w: Tensor) -> str:
    return f"({w[0]:.4f}, {w[1]:.4f})"


def _draw_paths(task: ToyTask, runs: list[tuple[str, str, float, Tensor, Tensor]], out: Path) -> None:
    """The paths over contours of the local loss, and the line to the optimum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    _draw_contours(axes, task)
    for name, letter, strength, rest, seen in runs:
        colour = ("tab:blue" if name == "FedProx" else "tab:red", 0.4 + 0.6 * strength / max(STRENGTHS))
        axes.plot(*seen.T, color=colour, label=f"{name} {letter} = {strength:g}")
        axes.plot(*rest, "x", color=colour, markersize=9)
    axes.set(xlabel="u", ylabel="v", title=f"Paths of local training, δ = {DELTA:g}; × marks where each comes to rest")
    axes.legend(loc="upper left")
    temporary = out.with_name(f".{out.name}.tmp")
    figure.savefig(temporary, format="png", dpi=150)
    os.replace(temporary, out)


def _draw_contours(axes: Any, task: ToyTask) -> None:
    u, v = torch.meshgrid(*[torch.linspace(-0.1, 1.2, 80, dtype=torch.float64)] * 2, indexing="ij")
    losses = task.loss(torch.stack([u, v], -1), NOTHING)
    axes.contour(u, v, losses, levels=torch.linspace(0, 1, 15)[1:] ** 2, colors="lightgrey", linewidths=0.8)
    axes.plot(*zip((0, 0), task.optimum.tolist(), strict=True), color="limegreen", label="line to the local optimum")
    axes.plot(*task.optimum, "k*", markersize=12)


@dataclass(frozen=True)
class ToyOptions:
    """FedSOL's two-dimensional example: where FedProx and FedSOL come to rest, and on which paths."""

    out: Path = Path("toy.png")
    """The picture to write."""


def toy_command(words: list[str]) -> None:
    """fedflat toy."""
    options = parse_options(ToyOptions, words, "fedflat toy")

    print_toy(options.out)
