"""Draw docs/images/methods/NAME.svg, what each method does to a step of a small problem: make pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import vmap
from two_weights import OPTIMA, ROUNDS, LocalPath, Round, TwoWeights, client_samples, optimum_of_the_mean, play

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.task import Task
from fedflat.core.vectors import norm
from fedflat.reproduce.leaderboard import method_text

FOLDER = Path(__file__).parent / "images" / "methods"
LOW, HIGH = -0.6, 3.5  # of both axes
CLIENTS, GREY, SERVER, POINT = ("#0072b2", "#d55e00"), "#a0a0a0", "black", "#009e73"
FEDAVG_ROUND, FEDAVG_MODEL = "FedAvg from the same w", "global model of FedAvg"
LEGEND = (
    *("steps of client 1", "steps of client 2", "where the gradient is taken", "what is sent"),
    *("the server's step", FEDAVG_ROUND, "global model", FEDAVG_MODEL, "optimum of the mean loss"),
)

Marks = Callable[[Round, Round], Mapping[str, Sequence[Tensor]]]


class Picture(NamedTuple):
    """What is drawn of a method.

    Args:
        method: the method, with options that make its effect visible.
        name: how the picture calls it; its name and options unless given.
        marks: further points by name, from the first and the second round.
    """

    method: Method
    name: str = ""
    marks: Marks = lambda first, second: {}

    @property
    def title(self) -> str:
        """The name of the method, with its options."""
        return self.name or method_text(self.method)


def start_of_clients(name: str) -> Marks:
    """Return marks with the point from which the clients start."""
    return lambda first, second: {f"{name}, where clients start": [second.clients[0].message.params]}


PICTURES: dict[str, Picture] = {
    "fedavg": Picture(ff.FedAvg()),
    "fedavgm": Picture(ff.ServerMomentum(beta=0.7)),
    "fedadam": Picture(ff.ServerAdam(server_lr=0.3)),
    "fedyogi": Picture(ff.ServerYogi(server_lr=0.3)),
    "fedadagrad": Picture(ff.ServerAdagrad(server_lr=0.8)),
    "fedswa": Picture(
        ff.Averaged(start_round=1, inner=ff.ServerMomentum(beta=0.7)),
        "fedswa+fedavgm",
        lambda first, second: {"where training goes on": [second.after.inner.params]},
    ),
    "fedexp": Picture(ff.FedExP(epsilon=0.05)),
    "compress": Picture(ff.Compressed(compressor="topk", keep=0.5)),
    "dpfedavg": Picture(ff.Private(clip=0.5, noise=0.2)),
    "fedprox": Picture(ff.FedProx(mu=1.0)),
    "fednova": Picture(ff.FedNova()),
    "scaffold": Picture(ff.SCAFFOLD()),
    "fedntd": Picture(ff.FedNTD(beta=5.0)),
    "feddyn": Picture(ff.FedDyn(dyn_alpha=0.5)),
    "moon": Picture(
        ff.MOON(mu=5.0), marks=lambda first, second: {"last local models": [path.models[-1] for path in first.clients]}
    ),
    "fedsam": Picture(ff.FedSAM(rho=0.5)),
    "fedasam": Picture(ff.FedASAM(rho=0.2)),
    "fedcm": Picture(ff.FedCM(cm_alpha=0.3)),
    "fedacg": Picture(ff.FedACG(lam=0.5), marks=start_of_clients("s")),
    "mofedsam": Picture(ff.MoFedSAM(rho=0.5, beta=0.3)),
    "fedgamma": Picture(ff.FedGAMMA(rho=0.5)),
    "fedsmoo": Picture(ff.FedSMOO(rho=0.5, beta=2.0)),
    "fedspeed": Picture(ff.FedSpeed(rho=0.5, lam=1.2)),
    "fedlesam": Picture(
        ff.FedLESAM(rho=0.5), marks=lambda first, second: {"w of the round before": [first.before.params]}
    ),
    "fedgmt": Picture(
        ff.FedGMT(ema_alpha=0.5), marks=lambda first, second: {"e, mean of the global models": [second.before.e]}
    ),
    "fedsol": Picture(ff.FedSOL(rho=1.0, perturb="all")),
    "fedsol-ablation": Picture(
        ff.FedSOLAblation(strategy="project", proximal="l2", perturb="all"), "fedsol-ablation, projection"
    ),
    "fedgf": Picture(
        ff.FedGF(rho=0.4, static_c=0.35), marks=lambda first, second: {"w̃": [second.clients[0].message.perturbed]}
    ),
    "fedgloss": Picture(ff.FedGloSS(rho=0.5, rho_local=0.2, beta=1.5), marks=start_of_clients("w̃")),
    "naivefedgloss": Picture(ff.NaiveFedGloSS(rho=0.4, rho_local=0.0, beta=3.0), marks=start_of_clients("w̃")),
    "perfedavg": Picture(ff.PerFedAvg(inner_lr=1.0)),
    "fedbabu": Picture(ff.FedBABU()),
}


def draw(name: str) -> Figure:
    """Return the picture of a method: its second round on the left, the global model over all rounds on the right."""
    picture = PICTURES[name]
    rounds = play(picture.method)
    figure = Figure(figsize=(9, 5.1), facecolor="white")
    left, right = figure.subplots(1, 2)
    draw_second_round(left, rounds, picture)
    draw_global_models(right, rounds, picture)
    for axes in (left, right):
        axes.set(xlim=(LOW, HIGH), ylim=(LOW, HIGH), aspect="equal", xticks=(), yticks=(), xlabel="u", ylabel="v")
    left.set_title(f"round 2 of {picture.title}", fontsize=11)
    right.set_title(f"the global model in {ROUNDS} rounds", fontsize=11)
    draw_legend(figure, [left, right])
    figure.subplots_adjust(left=0.01, right=0.99, top=0.94, bottom=0.2, wspace=0.03)
    return figure


def draw_legend(figure: Figure, panels: Sequence[Any]) -> None:
    """Draw one legend for both panels, in the order of LEGEND; the method's own marks are last."""
    entries = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [label for label in LEGEND if label in entries] + [label for label in entries if label not in LEGEND]
    handles = [entries[label] for label in labels]
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9.5)


def draw_second_round(axes: Any, rounds: Sequence[Round], picture: Picture) -> None:
    """Draw the second round, and in grey what FedAvg would do from the same model."""
    first, last = rounds[:2]
    draw_losses(axes)
    if not isinstance(picture.method, ff.FedAvg):
        draw_fedavg(axes, last.before.params)
    for number, path in enumerate(last.clients):
        draw_client(axes, number, path)
    for label, points in picture.marks(first, last).items():
        axes.plot(*torch.stack(list(points)).T, "D", color=POINT, ms=6, label=label, zorder=5)
    draw_arrow(axes, last.before.params, last.after.params, SERVER, "the server's step")
    axes.plot(*last.before.params, "o", color=SERVER, ms=6, zorder=6)
    axes.annotate("w", last.before.params.tolist(), (-4, -13), textcoords="offset points", fontsize=11)


def draw_fedavg(axes: Any, w: Tensor) -> None:
    """Draw in grey what FedAvg would do from the model w."""
    (fedavg,) = play(ff.FedAvg(), 1, w.tolist())
    for path in fedavg.clients:
        draw_line(axes, path.models, color=GREY, marker="o", ms=2, lw=1.2)
    draw_arrow(axes, w, fedavg.after.params, GREY, FEDAVG_ROUND)


def draw_client(axes: Any, number: int, path: LocalPath) -> None:
    """Draw a client's steps, the points where it took its gradients, and what it sent if that is not w_k − w."""
    colour = CLIENTS[number]
    for model, point in zip(path.models, path.gradients_at, strict=False):
        if point is not None and norm(point - model) > 1e-9:
            draw_line(axes, [model, point], color=colour, lw=0.8, ls=":")
            axes.plot(*point, "o", color=colour, mfc="white", ms=4.5, zorder=4)
            legend_entry(axes, "where the gradient is taken", marker="o", ls=":", ms=4.5)
    draw_line(axes, path.models, color=colour, marker="o", ms=3, lw=1.6, label=f"steps of client {number + 1}")
    sent = getattr(path.replies[0], "delta", None)
    end = path.models[-1]
    if sent is not None and norm(path.message.params + sent - end) > 1e-9:
        draw_line(axes, [end, path.message.params + sent], color=colour, lw=1, ls="--")
        axes.plot(*(path.message.params + sent), "s", color=colour, mfc="white", ms=6, zorder=4)
        legend_entry(axes, "what is sent", marker="s", ls="--", ms=6)


def draw_losses(axes: Any) -> None:
    """Draw contours of both clients' losses, their optima and that of the mean."""
    for number, colour in enumerate(CLIENTS):
        draw_contours(axes, [number], colour, 0.6)
        axes.plot(*OPTIMA[number], "*", color=colour, ms=11, zorder=3)
    axes.plot(*optimum_of_the_mean(), "*", color=SERVER, ms=11, label="optimum of the mean loss")


def draw_contours(axes: Any, clients: Sequence[int], colour: str, alpha: float) -> None:
    """Draw contours of the mean loss of some clients."""
    line = torch.linspace(LOW, HIGH, 60, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
    losses = torch.stack([vmap(Task(TwoWeights()).loss, (0, None))(points, client_samples(k)) for k in clients]).mean(0)
    levels = losses.min() + torch.tensor([0.03, 0.12, 0.3, 0.6, 1.0])
    axes.contour(line, line, losses.view(60, 60), levels=levels, colors=colour, linewidths=0.8, alpha=alpha)


def draw_global_models(axes: Any, rounds: Sequence[Round], picture: Picture) -> None:
    """Draw the global model round by round, beside FedAvg's, over contours of the mean loss."""
    draw_contours(axes, [0, 1], "black", 0.35)
    axes.plot(*optimum_of_the_mean(), "*", color=SERVER, ms=11, label="optimum of the mean loss")
    if not isinstance(picture.method, ff.FedAvg):
        draw_line(axes, global_models(play(ff.FedAvg())), color=GREY, marker="o", ms=3, lw=1.2, label=FEDAVG_MODEL)
    if isinstance(picture.method, ff.Averaged):
        trained = [each.clients[0].message.params for each in rounds]
        draw_line(axes, trained, color=POINT, marker="o", ms=3, lw=1)
    draw_line(axes, global_models(rounds), color=SERVER, marker="o", ms=3, lw=1.4, label="global model")


def global_models(rounds: Sequence[Round]) -> list[Tensor]:
    """Return the model that is evaluated before the first and after each round, each [2]."""
    return [rounds[0].before.params, *(each.after.params for each in rounds)]


def draw_line(axes: Any, points: Sequence[Tensor], **style: Any) -> None:
    """Draw a line through points [2]."""
    axes.plot(*torch.stack(list(points)).T, **style)


def draw_arrow(axes: Any, start: Tensor, end: Tensor, colour: str, label: str) -> None:
    """Draw an arrow from one model to another."""
    style = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 14}
    axes.annotate("", end.tolist(), start.tolist(), arrowprops=style, zorder=5)
    axes.plot([], [], color=colour, lw=2, label=label)


def legend_entry(axes: Any, label: str, **style: Any) -> None:
    """Add a line to the legend that stands for both clients."""
    axes.plot([], [], color=SERVER, mfc="white", lw=0.8, label=label, **style)


def save(name: str, folder: Path = FOLDER) -> Path:
    """Draw a method's picture into folder/NAME.svg and return the file. Its description has the path of the models."""
    path = "; ".join(f"{u:.4f} {v:.4f}" for u, v in global_models(play(PICTURES[name].method)))
    file = folder / f"{name}.svg"
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        metadata = {"Date": None, "Creator": None, "Description": f"{PICTURES[name].title}: {path}"}
        draw(name).savefig(file, metadata=metadata)
    file.write_text(with_short_numbers(file.read_text(encoding="utf-8")), encoding="utf-8")
    return file


def with_short_numbers(svg: str) -> str:
    """Return the picture with coordinates in hundredths of a point, which halves the file."""
    return re.sub(r'\bd="[^"]*"', lambda d: re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.2f}", d[0]), svg)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for drawn in PICTURES:
        save(drawn)
