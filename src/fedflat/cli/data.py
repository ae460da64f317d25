"""The commands fedflat data list, fedflat data prepare and fedflat data show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.cli.outputs import check_picture
from fedflat.data.dataset import default_partition
from fedflat.data.load import CatalogueRow, list_datasets, load_dataset
from fedflat.data.partition import class_counts, describe_partition, long_tail_rows, partition_rows
from fedflat.data.prepare import prepare_dataset
from fedflat.data.prepared import cache_folder
from fedflat.data.tables import TableColumns
from fedflat.errors import UserError
from fedflat.files import replace_file
from fedflat.options import Count, Index, NonNegative, Range

_BUBBLE_CLIENTS, _BUBBLE_CLASSES = 30, 20  # up to so many, each client and class gets a bubble; columns beyond
_COLUMN_PIXELS = 600  # height of the picture of columns
_LISTED_CLIENTS = 30  # up to so many, the table has a row for each client


def draw_partition(counts: np.ndarray, title: str, out: Path) -> None:
    """Draw how many samples of each class each client has, as PNG: bubbles for few clients, else stacked columns.

    Args:
        counts: samples of each class of each client, [clients, classes].
        title: first line of the title.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    figure = Figure(figsize=(min(4 + clients / 12, 14), 5), layout="constrained")
    axes = figure.add_subplot()
    few = clients <= _BUBBLE_CLIENTS and classes <= _BUBBLE_CLASSES
    (_draw_bubbles if few else _draw_columns)(figure, axes, counts)
    axes.set_title(f"{title}\n{(counts > 0).sum(1).mean():.2f} classes per client on average", fontsize=10)
    axes.set_xlabel("client")
    with replace_file(out) as file:
        figure.savefig(file, format="png", dpi=150)


def _draw_bubbles(figure: Any, axes: Any, counts: np.ndarray) -> None:
    """Draw a disc per client and class, whose area is the number of samples."""
    client, label = counts.nonzero()
    area = 300 * counts[client, label] / counts.max()
    axes.scatter(client, label, s=area, c=_class_colours(counts.shape[1])[label])
    axes.set(xlim=(-0.7, len(counts) - 0.3), ylim=(-0.7, counts.shape[1] - 0.3), ylabel="class")
    axes.set_xticks(range(0, len(counts), 1 + len(counts) // 15))
    axes.set_yticks(range(counts.shape[1]))


def _draw_columns(figure: Any, axes: Any, counts: np.ndarray) -> None:
    """Draw a column per client, as high as its samples, coloured by class; one image, so any number of clients fits."""
    from matplotlib.colors import ListedColormap

    clients, classes = counts.shape
    largest = counts.sum(1).max()
    columns = axes.imshow(
        stacked_columns(counts, _COLUMN_PIXELS),
        cmap=ListedColormap(_class_colours(classes)),
        vmin=-0.5,
        vmax=classes - 0.5,
        extent=(-0.5, clients - 0.5, 0, largest),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    if clients <= 200:
        axes.vlines(np.arange(1, clients) - 0.5, 0, largest, colors="white", linewidth=0.5)
    axes.set_ylabel("samples")
    ticks = np.unique(np.linspace(0, classes - 1, min(classes, 10)).astype(int))
    figure.colorbar(columns, ax=axes, label="class", ticks=ticks)


def stacked_columns(counts: np.ndarray, height: int) -> np.ma.MaskedArray:
    """Return the class at each height of each client's column, [height, clients], masked above the column's end."""
    ends = counts.cumsum(1)
    level = (np.arange(height) + 0.5) * ends[:, -1].max() / height
    label = np.stack([np.searchsorted(end, level, side="right") for end in ends], axis=1)
    return np.ma.masked_greater_equal(label, counts.shape[1])


def _class_colours(classes: int) -> np.ndarray:
    """Return one colour per class: distinct ones up to 20 classes, shades of a rainbow beyond."""
    from matplotlib import colormaps

    if classes <= 20:
        return colormaps["tab10" if classes <= 10 else "tab20"](range(classes))
    return colormaps["turbo"](np.linspace(0, 1, classes))


def partition_table(counts: np.ndarray, title: str) -> Table:
    """Return a table of samples, classes and share of the largest class: per client, or summarised for many clients.

    Args:
        counts: samples of each class of each client, [clients, classes].
        title: title of the table.
    """
    few = len(counts) <= _LISTED_CLIENTS
    table = Table("client" if few else f"of {len(counts)} clients", title=title)
    for column in ("samples", "classes", "share of the largest class"):
        table.add_column(column, justify="right")
    rows = _client_rows if few else _summary_rows
    for row in rows(counts.sum(1), (counts > 0).sum(1), counts.max(1) / counts.sum(1)):
        table.add_row(*row)
    return table


def _client_rows(sizes: np.ndarray, classes: np.ndarray, share: np.ndarray) -> list[list[str]]:
    return [[f"{k}", f"{sizes[k]}", f"{classes[k]}", f"{share[k]:.1%}"] for k in range(len(sizes))]


def _summary_rows(sizes: np.ndarray, classes: np.ndarray, share: np.ndarray) -> list[list[str]]:
    measures = (("smallest", np.min), ("median", np.median), ("mean", np.mean), ("largest", np.max))
    return [[name, f"{f(sizes):g}", f"{f(classes):.4g}", f"{f(share):.1%}"] for name, f in measures]


def prepare_and_print(name: str, source: Path | None = None, cache: Path | None = None) -> None:
    """Prepare a data set from the files at `source`, or download it, and print what was prepared."""
    path = prepare_dataset(name, source, cache)
    row = next(row for row in list_datasets(cache) if row.path == path)
    content = f"{row.train} training and {row.test} test images, {row.classes} classes, read from {row.source}"
    Console().print(f"{name}: {content}, in {path}", highlight=False, soft_wrap=True)


def print_datasets(cache: Path | None = None) -> None:
    """Print the data sets that are prepared and those that can be."""
    table = Table(title=f"data sets in {cache_folder(cache)}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "train", "test", "shape", "classes", "on disk", "from"):
        table.add_column(column, justify="left" if column in ("name", "from") else "right", no_wrap=column == "name")
    for row in list_datasets(cache):
        table.add_row(*_dataset_cells(row))
    hint = "(-: not prepared; prepare a set with: fedflat data prepare NAME [--from PATH])"
    Console().print(table, hint, sep="\n", highlight=False, markup=False)


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
    long_tail: float = 1.0,
    columns: TableColumns | None = None,
) -> None:
    """Draw how a partition distributes the classes over the clients, and print each client's size and classes.

    Args:
        dataset: name of the data set.
        partition: name of the partition, or "auto".
        clients: number of clients.
        alpha: concentration, for dirichlet and lda partitions.
        shards: shards per client, for the shards partition.
        seed: seed of the partition.
        out: the PNG file to write.
        cache: folder of prepared sets; FEDFLAT_CACHE or ~/.cache/fedflat unless given.
        long_tail: share of its training samples that the last class keeps.
        columns: which columns of table:FILE are used.
    """
    check_picture(out)
    data = load_dataset(dataset, cache, columns=columns)
    if data.task != "classification":
        raise UserError(None, dataset, f"has no classes to draw; its task is {data.task}")
    partition = default_partition(data) if partition == "auto" else partition
    kept = long_tail_rows(data.y.numpy(), long_tail, seed)
    labels, owner = data.y.numpy()[kept], None if data.owner is None else data.owner.numpy()[kept]
    rows = partition_rows(partition, labels, clients, seed, alpha, shards, owner)
    counts = class_counts(labels, rows, data.classes)
    title = f"{data.name}, {describe_partition(partition, alpha, shards)}, {len(counts)} clients"
    draw_partition(counts, title, out)
    console = Console()
    console.print(partition_table(counts, title))
    console.print(f"picture: {out}", highlight=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List the data sets that are prepared and those that can be."""

    cache: Path | None = None
    """Folder of prepared sets; FEDFLAT_CACHE or ~/.cache/fedflat unless given."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(ListOptions):
    """Prepare a data set for training, from files or by downloading it."""

    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder or archive with the original files; downloaded unless given."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(ListOptions):
    """Draw and print how a partition distributes the classes over the clients."""

    partition: Literal["auto", "iid", "shards", "lda", "lda-released", "lda-equal", "dirichlet", "natural"] = "auto"
    """How samples are split among clients; auto is natural if the data set names their clients, else dirichlet."""
    clients: Count = 20
    """Number of clients (a natural partition takes it from the data)."""
    alpha: NonNegative = 0.1
    """Concentration α of a Dirichlet partition; smaller is more heterogeneous. dirichlet: each client draws its mix of
    classes from Dirichlet(α / classes). lda: each class draws its shares over the clients from Dirichlet(α)."""
    shards: Count = 2
    """Shards per client in the shards partition."""
    long_tail: Annotated[float, Range(0, 1, open=True)] = 1.0
    """Share of its training samples that the last class keeps; classes before it keep more, the first all. 1: all."""
    partition_seed: Index = 0
    """Seed of the partition."""
    target_column: tuple[str, ...] = ()
    """Column of table:FILE with the classes."""
    client_column: str = ""
    """Column of table:FILE that names each row's client."""
    out: Path = Path("partition.png")
    """The picture to write."""


def list_data(words: list[str]) -> None:
    """Run fedflat data list with the words that follow it."""
    print_datasets(parse_options(ListOptions, words, "fedflat data list").cache)


def prepare_data(words: list[str]) -> None:
    """Run fedflat data prepare NAME with the words that follow prepare."""
    names, flags = split_positionals(words)
    options = parse_options(PrepareOptions, flags, "fedflat data prepare NAME")
    if len(names) != 1:
        raise UserError(None, " ".join(["data prepare", *names]), "name one data set; fedflat data list shows them")
    prepare_and_print(names[0], options.from_, options.cache)


def show_data(words: list[str]) -> None:
    """Run fedflat data show [NAME] with the words that follow show; the data set is digits unless given."""
    names, flags = split_positionals(words)
    o = parse_options(ShowOptions, flags, "fedflat data show [NAME]")
    if len(names) > 1:
        raise UserError(None, " ".join(["data show", *names]), "name one data set")
    name = names[0] if names else "digits"
    columns = TableColumns(o.target_column, client=o.client_column, task="auto")
    options = (o.partition, o.clients, o.alpha, o.shards, o.partition_seed, o.out, o.cache, o.long_tail)
    show_partition(name, *options, columns)
