"""fedflat toy: FedSOL's two-dimensional example (Lee et al., 2024, Appendix L): the fixed points of FedProx and FedSOL.

The parameters are w = (u, v), the global model (0, 0), the local optimum o = (u_l, v_l), and δ > 0:

    L_local = ½ (u − u_l)² + δ/2 (v − v_l)²,   L_p = ½ (u² + v²)

FedProx follows ∇L_local + μ ∇L_p and converges to (u_l / (1 + μ), δ v_l / (δ + μ)), off the line to o if δ ≠ 1.
FedSOL follows ∇L_local at w + ρ w / ‖w‖ and converges to (1 − ρ / ‖o‖) o: on the line to o, at distance ρ from o.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedflat.cli.arguments import parse_options
from fedflat.cli.outputs import check_picture
from fedflat.core.local_training import local_step, start_local_training
from fedflat.core.method import Message, Method
from fedflat.core.optimiser import Optimiser
from fedflat.core.task import Batch, Task
from fedflat.core.vectors import norm, unit
from fedflat.files import replace_file
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsol_ablation import FedSOLAblation

OPTIMUM = torch.tensor([1.0, 1.0], dtype=torch.float64)
DELTA = 0.1
LR, STEPS = 0.01, 4000  # of the paper's Figure 13
STRENGTHS = (0.1, 0.3, 1.0)  # values of μ for FedProx and of ρ for FedSOL
NO_SAMPLES = Batch(torch.zeros(0), torch.zeros(0), torch.zeros(0), None)


class ToyTask(Task):
    """L_local as a task without samples.

    Args:
        optimum: the local optimum o, [2].
        delta: the curvature δ in the direction of v.
    """

    def __init__(self, optimum: Tensor = OPTIMUM, delta: float = DELTA) -> None:
        super().__init__(nn.ParameterDict({"w": nn.Parameter(torch.zeros_like(optimum))}))
        self.optimum, self.curvature = optimum, torch.tensor([1.0, delta], dtype=optimum.dtype)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Return ½ (u − u_l)² + δ/2 (v − v_l)²."""
        return 0.5 * (self.curvature * (w - self.optimum) ** 2).sum(-1)

    def grad(self, w: Tensor, batch: Batch) -> Tensor:
        """Return (u − u_l, δ (v − v_l))."""
        return self.curvature * (w - self.optimum)


def toy_fedprox(mu: float) -> FedProx:
    """Return FedProx, which adds the proximal loss to the local loss."""
    return FedProx(mu=mu)


def toy_fedsol(rho: float) -> FedSOLAblation:
    """Return FedSOL with a perturbation of fixed length ρ along the gradient of L_p."""
    return FedSOLAblation(rho=rho, lam="fixed", perturb="all", proximal="l2")


def toy_path(method: Method, task: ToyTask, lr: float = LR, steps: int = STEPS) -> Tensor:
    """Return the parameters after 0, 1, …, `steps` local steps from the global model, [steps + 1, 2]."""
    msg = Message(torch.zeros_like(task.optimum))
    sgd = Optimiser(torch.tensor(lr, dtype=msg.params.dtype))
    carry, path = start_local_training(sgd, msg, ()), [msg.params]
    for _ in range(steps):
        carry = local_step(method, task, sgd, carry, NO_SAMPLES, msg)
        path.append(carry.w)
    return torch.stack(path)


def fedprox_fixed_point(task: ToyTask, mu: float) -> Tensor:
    """Return the point [2] where FedProx's direction is 0."""
    return task.curvature * task.optimum / (task.curvature + mu)


def fedsol_fixed_point(task: ToyTask, rho: float) -> Tensor:
    """Return the point [2] where FedSOL's direction is 0, for ρ < ‖o‖."""
    return task.optimum - rho * unit(task.optimum)


def distance_from_line(w: Tensor, task: ToyTask) -> float:
    """Return the distance of w from the line through the global model and the local optimum."""
    along = unit(task.optimum)
    return float(norm(w - (w @ along) * along))


class ToyRun(NamedTuple):
    """The path of one method: its name and strength (μ or ρ), its fixed point [2] and its path [steps + 1, 2]."""

    method: str
    strength: float
    fixed_point: Tensor
    path: Tensor

    @property
    def label(self) -> str:
        """The method and its strength, such as FedSOL ρ = 0.3."""
        return f"{self.method} {'μ' if self.method == 'FedProx' else 'ρ'} = {self.strength:g}"


def print_toy(out: Path) -> None:
    """Print the fixed points of both methods and draw their paths to the PNG file `out`."""
    check_picture(out)
    task = ToyTask()
    runs = [ToyRun("FedProx", s, fedprox_fixed_point(task, s), toy_path(toy_fedprox(s), task)) for s in STRENGTHS]
    runs += [ToyRun("FedSOL", s, fedsol_fixed_point(task, s), toy_path(toy_fedsol(s), task)) for s in STRENGTHS]
    table = Table("method", "rests at", "off the line", "to the optimum", f"after {STEPS} steps")
    for run in runs:
        off_line, to_optimum = distance_from_line(run.fixed_point, task), float(norm(run.fixed_point - task.optimum))
        points = [_point_text(point) for point in (run.fixed_point, run.path[-1])]
        table.add_row(run.label, points[0], f"{off_line:.4f}", f"{to_optimum:.4f}", points[1])
    console = Console()
    console.print(table) if console.is_terminal else Console(width=120).print(table)
    _draw_paths(task, runs, out)
    print(f"paths drawn in {out}")


def _point_text(w: Tensor) -> str:
    return f"({w[0]:.4f}, {w[1]:.4f})"


def _draw_paths(task: ToyTask, runs: list[ToyRun], out: Path) -> None:
    """Draw the paths over contours of the local loss, and the line to the optimum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    _draw_contours(axes, task)
    for run in runs:
        colour = ("tab:blue" if run.method == "FedProx" else "tab:red", 0.4 + 0.6 * run.strength / max(STRENGTHS))
        axes.plot(*run.path.T, color=colour, label=run.label)
        axes.plot(*run.fixed_point, "x", color=colour, markersize=9)
    axes.set(xlabel="u", ylabel="v", title=f"Paths of local training, δ = {DELTA:g}; × marks where each converges")
    axes.legend(loc="upper left")
    with replace_file(out) as file:
        figure.savefig(file, format="png", dpi=150)


def _draw_contours(axes: Any, task: ToyTask) -> None:
    """Draw contours of the local loss, the local optimum, and the line to it."""
    u, v = torch.meshgrid(*[torch.linspace(-0.1, 1.2, 80, dtype=torch.float64)] * 2, indexing="ij")
    losses = task.loss(torch.stack([u, v], -1), NO_SAMPLES)
    axes.contour(u, v, losses, levels=torch.linspace(0, 1, 15)[1:] ** 2, colors="lightgrey", linewidths=0.8)
    axes.plot(*zip((0, 0), task.optimum.tolist(), strict=True), color="limegreen", label="line to the local optimum")
    axes.plot(*task.optimum, "k*", markersize=12)


@dataclass(frozen=True)
class ToyOptions:
    """FedSOL's two-dimensional example: the paths of FedProx and FedSOL, and the points to which they converge."""

    out: Path = Path("toy.png")
    """The picture to write."""


def toy_command(words: list[str]) -> None:
    """Run fedflat toy."""
    options = parse_options(ToyOptions, words, "fedflat toy")
    print_toy(options.out)
