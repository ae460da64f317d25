"""What to train next, most useful first, and which process trains it.

`fedflat reproduce` can work through QUEUE. Several processes may do so at the same time with the same folder of runs: a
process claims a group of jobs before it trains them, and the others go on with the next group.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedflat.reproduce.cells import find_table
from fedflat.reproduce.fedgloss_settings import DECIDING
from fedflat.reproduce.table import TableCell


class QueueEntry(NamedTuple):
    """Cells to train.

    Args:
        tables: names of tables.
        cells: patterns of cells, as for `fedflat reproduce --cells`; all if empty.
        variant: the cells' variant; '' for the paper's settings.
        seeds: the seeds that they should have.
    """

    tables: tuple[str, ...]
    cells: tuple[str, ...] = ()
    variant: str = ""
    seeds: tuple[int, ...] = (0,)

    def find_cells(self) -> list[TableCell]:
        """Return the cells that match, in the order of the tables."""
        tables = [find_table(name) for name in self.tables]
        every = [cell for table in tables for cell in (*table.cells, *table.variants)]
        return [cell for cell in every if cell.variant == self.variant and cell.matches(self.cells)]

    @property
    def text(self) -> str:
        """The entry as words of the command line."""
        cells = ["--cells", *(f'"{pattern}"' for pattern in self.cells)] if self.cells else []
        variant = ["--variant", self.variant] if self.variant else []
        return " ".join([*self.tables, *cells, *variant, "--seeds", *map(str, self.seeds)])


THREE = (0, 1, 2)
FEDSOL_REST = tuple(f"fedsol/{name}" for name in ("table1", "table4", "table5", "table9", "table12"))
FEDSOL_FIGURES = tuple(f"fedsol/figure{number}" for number in (3, 4, 5, 6, 7))
FEDGLOSS_REST = tuple(f"fedgloss/{name}" for name in ("table1", "table6", "table7", "table8", "table10"))
FEDGF_REST = ("fedgf/table2", "fedgf/table4", "fedgf/table5", "fedgf/figure4")
ABOVE = ("fedavg", "scaffold", "fedsol")  # above the printed numbers without Cutout
CNN10, CNN100 = ("cnn cifar10",), ("cnn cifar100",)

QUEUE = (
    QueueEntry(("fedsol/table2",), ("cifar10",), "authors"),
    QueueEntry(("flsam/cifar10",)),
    QueueEntry(("fedsol/table2",), ("cifar10",), "authors-mu-0.1"),
    QueueEntry(("fedsol/table2",), ("cifar10",), "authors-fednova"),
    QueueEntry(("fedsol/table2",), tuple(f"cifar10 {name}" for name in ABOVE), "authors-cutout"),
    QueueEntry(("fedgloss/table3",), ("cnn cifar10 fedgloss*", "cnn cifar10 fedspeed"), "released"),
    QueueEntry(("fedgloss/table3",), CNN10),
    *(QueueEntry(("fedgloss/table3",), CNN10, variant) for variant in DECIDING),
    QueueEntry(("fedgloss/table3",), CNN10, "warmup"),
    QueueEntry(FEDSOL_REST, ("cifar10",), "authors"),
    QueueEntry(("fedsol/table2",), ("cifar10",), "authors", THREE),
    QueueEntry(FEDSOL_FIGURES, ("cifar10",), "authors"),
    QueueEntry(("fedgloss/table3",), CNN100, "released"),
    QueueEntry(("fedgloss/table3",), CNN100),
    QueueEntry(("fedgloss/table3",), CNN100, "warmup"),
    QueueEntry(FEDGLOSS_REST, CNN10, "released"),
    QueueEntry(FEDGLOSS_REST, CNN10),
    QueueEntry(("fedgf/table1",), ("cifar10 cohort-5",)),
    QueueEntry(("fedgf/table1",), ("cifar10",)),
    QueueEntry(("fedgf/table1",), ("cifar100 cohort-5",)),
    QueueEntry(FEDGF_REST),
    QueueEntry(("fedgf/table1",), ("cifar100",)),
    QueueEntry(("fedgloss/table3",), CNN10, "released", THREE),
    QueueEntry(("fedgloss/table3",), CNN10, "", THREE),
    QueueEntry(FEDSOL_REST, ("cifar10",), "authors", THREE),
    QueueEntry(("fedgf/table1",), ("cifar10 cohort-5",), "", THREE),
    QueueEntry(("fedsol/table3",), ("cifar10",), "authors"),
    QueueEntry(("fedsol/table10",), ("cifar100",), "authors"),
    QueueEntry(("fedsol/table2",), ("mnist",), "authors"),
    QueueEntry(FEDGLOSS_REST, CNN100, "released"),
    QueueEntry(FEDGLOSS_REST, CNN100),
    QueueEntry(("fedgloss/table3",), ("resnet18",), "released"),
    QueueEntry(("fedgloss/table3", "fedgloss/figure8"), ("resnet18",)),
)


@contextmanager
def claim_group(runs: Path, key: str) -> Iterator[bool]:
    """Claim a group of jobs until the end of the block or of the process.

    Args:
        runs: folder of the run folders, which the processes share.
        key: a text that names the group.

    Yields False if another process has claimed it.
    """
    path = runs / "claims" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
