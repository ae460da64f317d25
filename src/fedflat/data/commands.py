"""What `fedflat data prepare`, `list` and `show` do."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedflat.data.dataset import default_partition
from fedflat.data.load import CatalogueRow, list_datasets, load_dataset
from fedflat.data.partition import class_counts, describe_partition, partition_rows
from fedflat.data.prepare import prepare_dataset
from fedflat.data.prepared import cache_folder
from fedflat.data.show import picture, table
from fedflat.options import check_picture


def prepare_command(name: str, source: Path | None = None, cache: Path | None = None) -> None:
    """Prepare a set from files at `source`, or download it."""
    path = prepare_dataset(name, source, cache)
    row = next(row for row in list_datasets(cache) if row.path == path)
    found = f"{row.train} training and {row.test} test images, {row.classes} classes, read from {row.source}"
    Console().print(f"{name}: {found}, in {path}", highlight=False, soft_wrap=True)


def list_command(cache: Path | None = None) -> None:
    """Print what is prepared and what can be."""
    shown = Table(title=f"data sets in {cache_folder(cache)}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "train", "test", "shape", "classes", "on disk", "from"):
        shown.add_column(column, justify="left" if column in ("name", "from") else "right", no_wrap=column == "name")
    for row in list_datasets(cache):
        shown.add_row(*_cells(row))
    hint = "(-: not prepared; prepare a set with: fedflat data prepare NAME [--from PATH])"
    Console().print(shown, hint, sep="\n", highlight=False, markup=False)


def _cells(row: CatalogueRow) -> list[str]:
    if not row.prepared:
        return [row.name, "-", "-", "-", str(row.classes), "-", "-"]
    shape = "x".join(str(n) for n in row.shape or ())
    disk = decimal(row.bytes) if row.path else ""
    return [row.name, f"{row.train:,}", f"{row.test:,}", shape, str(row.classes), disk, row.source]


def show_command(
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
    picture(held, title, out)
    console = Console()
    console.print(table(held, title))
    console.print(f"picture: {out}", highlight=False, soft_wrap=True)
