"""Every table and figure, by name."""

from __future__ import annotations

from fedflat.errors import UserError, near_miss
from fedflat.papers import (
    fedgf,
    fedgf_more,
    fedgloss,
    fedgloss_figures,
    fedgloss_more,
    fedsol,
    fedsol_figures,
    fedsol_more,
)
from fedflat.papers.table import Table

FEDSOL = (fedsol.TABLE1, fedsol.TABLE2, fedsol.TABLE3, *fedsol_more.TABLES, *fedsol_figures.TABLES)


FEDGF = (fedgf.TABLE1, *fedgf_more.TABLES)


FEDGLOSS = (fedgloss.TABLE3, *fedgloss_more.TABLES, *fedgloss_figures.TABLES)


def _number(table: Table) -> tuple[bool, int]:
    """Tables before figures, in the order of their numbers."""
    place = table.name.partition("/")[2]
    return place.startswith("figure"), int(place.removeprefix("table").removeprefix("figure"))


TABLES = {table.name: table for paper in (FEDSOL, FEDGF, FEDGLOSS) for table in sorted(paper, key=_number)}


MAIN = ("fedsol/table2", "fedgloss/table3", "fedgf/table1")  # what is trained for several is stored under these


def find_table(name: str) -> Table:
    """A table by its name, such as fedsol/table2."""
    if name not in TABLES:
        raise UserError(f"reproduce {name}: unknown table{near_miss(name, TABLES)}; tables are {', '.join(TABLES)}")
    return TABLES[name]
