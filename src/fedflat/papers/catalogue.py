"""Every table and figure, by name."""

from __future__ import annotations

from fedflat.errors import UserError, near_miss
from fedflat.papers import fedgloss, fedsol
from fedflat.papers.table import Table

TABLES = {
    table.name: table
    for table in (
        fedsol.TABLE1,
        fedsol.TABLE2,
        fedsol.TABLE3,
        fedgloss.TABLE3,
        fedgloss.TABLE4,
        fedgloss.TABLE6,
        fedgloss.TABLE7,
        fedgloss.TABLE8,
    )
}


def find_table(name: str) -> Table:
    """A table by its name, such as fedsol/table2."""
    if name not in TABLES:
        raise UserError(f"reproduce {name}: unknown table{near_miss(name, TABLES)}; tables are {', '.join(TABLES)}")
    return TABLES[name]
