"""fedflat data list, prepare and show."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.data.dataset import default_partition
from fedflat.data.load import CatalogueRow, list_datasets, load_dataset
from fedflat.data.partition import class_counts, describe_partition, partition_rows
from fedflat.data.prepare import prepare_dataset
from fedflat.data.prepared import cache_folder
from fedflat.errors import UserError
from fedflat.options import Count, Index, NonNegative, check_picture

_BUBBLES = (30, 20)  # clients and classes up to which every count gets a bubble of its own


_PIXELS = 600  # height of the stacked picture


_LISTED = 30  # clients up to which the table has a row for each


def draw_partition(held: np.ndarray, title: str, out: Path) -> None:
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
    _write_png(out, image.getvalue())


def _write_png(out: Path, data: bytes) -> None:
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
        stacked_columns(held, _PIXELS),
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


def stacked_columns(held: np.ndarray, height: int) -> np.ma.MaskedArray:
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


def print_partition(held: np.ndarray, title: str) -> Table:
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


def prepare_and_tell(name: str, source: Path | None = None, cache: Path | None = None) -> None:
    """Prepare a set from files at `source`, or download it."""
    path = prepare_dataset(name, source, cache)
    row = next(row for row in list_datasets(cache) if row.path == path)
    found = f"{row.train} training and {row.test} test images, {row.classes} classes, read from {row.source}"
    Console().print(f"{name}: {found}, in {path}", highlight=False, soft_wrap=True)


def print_datasets(cache: Path | None = None) -> None:
    """Print what is prepared and what can be."""
    shown = Table(title=f"data sets in {cache_folder(cache)}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "train", "test", "shape", "classes", "on disk", "from"):
        shown.add_column(column, justify="left" if column in ("name", "from") else "right", no_wrap=column == "name")
    for row in list_datasets(cache):
        shown.add_row(*_dataset_cells(row))
    hint = "(-: not prepared; prepare a set with: fedflat data prepare NAME [--from PATH])"
    Console().print(shown, hint, sep="\n", highlight=False, markup=False)


def _dataset_cells(row: CatalogueRow) -> list[str]:
    if not row.prepared:
        return [row.name, "-", "-", "-", str(row.classes), "-", "-"]
    shape = "x".join(str(n) for n in row.shape or ())
    disk = decimal(row.bytes) if row.path else ""
    return [row.name, f"{row.train:,}", f"{row.test:,}", shape, str(row.classes), disk, row.source]


def show_partition(
    dataset: str,
    partition: str,
    clients: int,
    alpha: float,
    shards: int,
    seed: int,
    out: Path,
    cache: Path | None = None,
) -> None:
    """Draw how a partition spreads the classes over the clients, and print each client's size and classes."""
    check_picture(out)
    data = load_dataset(dataset, cache)
    partition = default_partition(data) if partition == "auto" else partition
    owner = None if data.owner is None else data.owner.numpy()
    labels = data.y.numpy()
    held = class_counts(labels, partition_rows(partition, labels, clients, seed, alpha, shards, owner), data.classes)
    title = f"{data.name}, {describe_partition(partition, alpha, shards)}, {len(held)} clients"
    draw_partition(held, title, out)
    console = Console()
    console.print(print_partition(held, title))
    console.print(f"picture: {out}", highlight=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List the data sets that are prepared and those that can be."""

    cache: Path | None = None
    """Folder of prepared sets; FEDFLAT_CACHE or ~/.cache/fedflat unless given."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(ListOptions):
    """Make a data set ready for training, from files or by downloading it."""

    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder or archive with the original files; downloaded unless given."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(ListOptions):
    """Draw and print how a partition deals the classes to the clients."""

    partition: Literal["auto", "iid", "shards", "lda", "lda-released", "dirichlet", "natural"] = "auto"
    """How samples are dealt to clients; auto is natural where the data name their clients, else dirichlet."""
    clients: Count = 20
    """Number of clients (given by the data for natural clients)."""
    alpha: NonNegative = 0.1
    """Concentration of dirichlet and lda partitions; smaller is more heterogeneous."""
    shards: Count = 2
    """Shards per client of the shards partition."""
    partition_seed: Index = 0
    """Seed of the partition."""
    out: Path = Path("partition.png")
    """The picture to write."""


def list_data(words: list[str]) -> None:
    """fedflat data list."""
    print_datasets(parse_options(ListOptions, words, "fedflat data list").cache)


def prepare_data(words: list[str]) -> None:
    """fedflat data prepare NAME."""
    names, flags = split_positionals(words)
    options = parse_options(PrepareOptions, flags, "fedflat data prepare NAME")
    if len(names) != 1:
        raise UserError(f"{' '.join(['data prepare', *names])}: name one data set; fedflat data list shows them")
    prepare_and_tell(names[0], options.from_, options.cache)


def show_data(words: list[str]) -> None:
    """fedflat data show NAME, digits unless given."""
    names, flags = split_positionals(words)
    o = parse_options(ShowOptions, flags, "fedflat data show [NAME]")
    if len(names) > 1:
        raise UserError(f"{' '.join(['data show', *names])}: name one data set")
    name = names[0] if names else "digits"
    show_partition(name, o.partition, o.clients, o.alpha, o.shards, o.partition_seed, o.out, o.cache)
