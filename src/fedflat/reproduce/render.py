"""Tables as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from fedflat.reproduce.claims import our_text, verdict
from fedflat.reproduce.results import OurValue, StoredResults
from fedflat.reproduce.table import PaperTable, TableCell
from fedflat.reproduce.train import ReproduceRequest, data_prepared

TextRow = tuple[str, ...]
HEADINGS = ("cell", "paper", "ours", "difference", "verdict")
REPLACE = "JPEG images, to be replaced"


def table_rows(
    table: PaperTable, cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest
) -> list[TextRow]:
    """Return a row for each cell, with the columns of HEADINGS."""
    return [_row(table, cell, stored, request) for cell in cells]


def _row(table: PaperTable, cell: TableCell, stored: StoredResults, request: ReproduceRequest) -> TextRow:
    ours = stored.ours(cell)
    name, printed = " ".join(cell.words), printed_text(cell)
    if ours is None:
        return name, printed, "–", "", missing_text(cell, stored, request)
    if not stored.comparable(cell, ours):
        return name, printed, our_text(cell, ours), "", _difference_of_settings(cell, ours, request)
    difference = math.nan if cell.printed is None else ours.mean - cell.printed
    shown = f"{difference:+.2f}" if math.isfinite(difference) else ""
    answer = verdict(table, cell, stored)
    return (
        name,
        printed,
        our_text(cell, ours),
        shown,
        f"{REPLACE}: {answer}".removesuffix(": ") if ours.jpeg else answer,
    )


def _difference_of_settings(cell: TableCell, ours: OurValue, request: ReproduceRequest) -> str:
    """Return why our number cannot be compared: on digits, 3 of 300 rounds."""
    where = f"on {request.dataset}, " if request.dataset else ""
    return f"{where}{ours.rounds} of {cell.setting['rounds']} rounds"


def printed_text(cell: TableCell) -> str:
    """Return the printed number as text."""
    if cell.printed is None:
        return "does not converge" if cell.failed else "–"
    if math.isinf(cell.printed):
        return "not reached"
    if cell.failed:
        return f"{cell.printed:.2f}, failed"
    return f"{cell.printed:g}" if cell.spread is None else f"{cell.printed:.2f} ± {cell.spread:.2f}"


def missing_text(cell: TableCell, stored: StoredResults, request: ReproduceRequest) -> str:
    """Return why we have no number for a cell."""
    if cell.unavailable:
        return f"unavailable: {cell.unavailable}"
    if not data_prepared(cell, request.dataset):
        return f"{cell.setting['dataset']} is not prepared"
    return "no number" if stored.record(stored.experiment(cell)) else "not run"


def as_markdown(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """Return rows as a Markdown table."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_latex(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """Return rows as a LaTeX tabular with the rules of booktabs."""
    special = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "±": r"$\pm$", "–": "--", "λ": r"$\lambda$"})
    body = [" & ".join(cell.translate(special) for cell in row) + r" \\" for row in rows]
    parts = [rf"\begin{{tabular}}{{{'l' * len(headings)}}}", r"\toprule", " & ".join(headings) + r" \\", r"\midrule"]
    return "\n".join([*parts, *body, r"\bottomrule", r"\end{tabular}"])


def as_csv(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """Return rows as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue().rstrip("\n")


def as_text(rows: Sequence[TextRow], headings: TextRow = HEADINGS, title: str = "", note: str = "") -> str:
    """Return rows as aligned columns for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    grid = Table(*headings, box=SIMPLE_HEAD, title=title, caption=note, title_justify="left", caption_justify="left")
    for row in rows:
        grid.add_row(*row)
    console = Console(width=150, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return captured.get().rstrip()


FORMATS = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
