"""Who holds what: the clients x classes picture (FedSOL Fig. 6, FedGloSS Fig. 20) and its table."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

_BUBBLES = (30, 20)  # clients and classes up to which every count gets a bubble of its own


_PIXELS = 600  # height of the stacked picture


_LISTED = 30  # clients up to which the table has a row for each


def picture(held: np.ndarray, title: str, out: Path) -> None:
    """Draw the counts `held` [clients, classes] as PNG: bubbles for few clients, stacked columns for many."""
    from matplotlib.figure import Figure

    clients, classes = held.shape
    figure = Figure(figsize=(min(4 + clients / 12, 14), 5), layout="constrained")
    axes = figure.add_subplot()
    few = clients <= _BUBBLES[0] and classes <= _BUBBLES[1]
    (_bubbles if few else _columns)(figure, axes, held)
    axes.set_title(f"{title}\n{(held > 0).sum(1).mean():.2f} classes per client on average", fontsize=10)
    axes.set_xlabel("client")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    _replace(out, image.getvalue())


def _replace(out: Path, data: bytes) -> None:
    """Write `out` under a temporary name first."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, out)


def _bubbles(figure: Any, axes: Any, held: np.ndarray) -> None:
    """A disc per client and class whose area is the number of samples."""
    client, label = held.nonzero()
    axes.scatter(client, label, s=300 * held[client, label] / held.max(), c=_colours(held.shape[1])[label])
    axes.set(xlim=(-0.7, len(held) - 0.3), ylim=(-0.7, held.shape[1] - 0.3), ylabel="class")
    axes.set_xticks(range(0, len(held), 1 + len(held) // 15))
    axes.set_yticks(range(held.shape[1]))


def _columns(figure: Any, axes: Any, held: np.ndarray) -> None:
    """A column per client, as high as its samples, coloured by class; drawn as one image, so any number will do."""
    from matplotlib.colors import ListedColormap

    colours = _colours(held.shape[1])
    top = held.sum(1).max()
    drawn = axes.imshow(
        stacked(held, _PIXELS),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=held.shape[1] - 0.5,
        extent=(-0.5, len(held) - 0.5, 0, top),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    if len(held) <= 200:
        axes.vlines(np.arange(1, len(held)) - 0.5, 0, top, colors="white", linewidth=0.5)
    axes.set_ylabel("samples")
    ticks = np.unique(np.linspace(0, held.shape[1] - 1, min(held.shape[1], 10)).astype(int))
    figure.colorbar(drawn, ax=axes, label="class", ticks=ticks)


def stacked(held: np.ndarray, height: int) -> np.ma.MaskedArray:
    """[height, clients]: the class at each height of each client's column, masked above its end."""
    ends = held.cumsum(1)
    level = (np.arange(height) + 0.5) * ends[:, -1].max() / height
    label = np.stack([np.searchsorted(end, level, side="right") for end in ends], axis=1)
    return np.ma.masked_greater_equal(label, held.shape[1])


def _colours(classes: int) -> np.ndarray:
    """One colour per class: distinct ones up to 20 classes, shades of a rainbow beyond."""
    from matplotlib import colormaps

    if classes <= 20:
        return colormaps["tab10" if classes <= 10 else "tab20"](range(classes))
    return colormaps["turbo"](np.linspace(0, 1, classes))


def table(held: np.ndarray, title: str) -> Table:
    """Samples, classes and share of the largest class of each client; the spread over clients where they are many."""
    few = len(held) <= _LISTED
    shown = Table("client" if few else f"of {len(held)} clients", title=title)
    for column in ("samples", "classes", "share of the largest class"):
        shown.add_column(column, justify="right")
    for row in (_each if few else _spread)(held.sum(1), (held > 0).sum(1), held.max(1) / held.sum(1)):
        shown.add_row(*row)
    return shown


def _each(sizes: np.ndarray, classes: np.ndarray, share: np.ndarray) -> list[list[str]]:
    return [[f"{k}", f"{sizes[k]}", f"{classes[k]}", f"{share[k]:.1%}"] for k in range(len(sizes))]


def _spread(sizes: np.ndarray, classes: np.ndarray, share: np.ndarray) -> list[list[str]]:
    measures = (("smallest", np.min), ("median", np.median), ("mean", np.mean), ("largest", np.max))
    return [[name, f"{f(sizes):g}", f"{f(classes):.4g}", f"{f(share):.1%}"] for name, f in measures]
