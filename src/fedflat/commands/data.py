"""fedflat data list, prepare and show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedflat.commands.parse import leading, parse
from fedflat.data.commands import list_command, prepare_command, show_command
from fedflat.errors import UserError
from fedflat.options import Count, Index, NonNegative


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
    list_command(parse(ListOptions, words, "fedflat data list").cache)


def prepare_data(words: list[str]) -> None:
    """fedflat data prepare NAME."""
    names, flags = leading(words)
    options = parse(PrepareOptions, flags, "fedflat data prepare NAME")
    if len(names) != 1:
        raise UserError(f"{' '.join(['data prepare', *names])}: name one data set; fedflat data list shows them")
    prepare_command(names[0], options.from_, options.cache)


def show_data(words: list[str]) -> None:
    """fedflat data show NAME, digits unless given."""
    names, flags = leading(words)
    o = parse(ShowOptions, flags, "fedflat data show [NAME]")
    if len(names) > 1:
        raise UserError(f"{' '.join(['data show', *names])}: name one data set")
    name = names[0] if names else "digits"
    show_command(name, o.partition, o.clients, o.alpha, o.shards, o.partition_seed, o.out, o.cache)
