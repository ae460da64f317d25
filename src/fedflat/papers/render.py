"""A table as rows of text, and these on the terminal, in Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from fedflat.papers.plan import Request, prepared
from fedflat.papers.table import Cell, Table
from fedflat.papers.values import Ours, Stored
from fedflat.papers.verdict import verdict

HEADINGS = ("cell", "paper", "ours", "difference", "verdict")


Row = tuple[str, ...]


def rows(table: Table, cells: Sequence[Cell], stored: Stored, request: Request) -> list[Row]:
    """One row per cell."""
    return [_row(table, cell, stored, request) for cell in cells]


def _row(table: Table, cell: Cell, stored: Stored, request: Request) -> Row:
    ours = stored.ours(cell)
    name = " ".join(cell.words)
    if ours is None:
        return name, paper(cell), "–", "", state(cell, stored, request)
    if not stored.comparable(cell, ours):
        where = f"on {request.dataset}, " if request.dataset else ""
        return name, paper(cell), own(cell, ours), "", f"{where}{ours.rounds} of {cell.setting['rounds']} rounds"
    gap = math.nan if cell.printed is None else ours.mean - cell.printed
    return name, paper(cell), own(cell, ours), f"{gap:+.2f}" if math.isfinite(gap) else "", verdict(table, cell, stored)


def paper(cell: Cell) -> str:
    """The number as printed."""
    if cell.printed is None:
        return "does not converge" if cell.failed else "–"
    if math.isinf(cell.printed):
        return "not reached"
    if cell.failed:
        return f"{cell.printed:.2f}, failed"
    return f"{cell.printed:g}" if cell.spread is None else f"{cell.printed:.2f} ± {cell.spread:.2f}"


def own(cell: Cell, ours: Ours) -> str:
    """Ours, with the number of seeds."""
    if math.isinf(ours.mean):
        return "not reached"
    if cell.measure == "models":
        return f"{ours.mean:g}"
    lost = f", {ours.diverged} diverged" if ours.diverged else ""
    several = f" ± {ours.std:.2f} ({len(ours.values)} seeds{lost})" if len(ours.values) > 1 else " (1 seed" + lost + ")"
    return f"{ours.mean:.2f}{several}"


def state(cell: Cell, stored: Stored, request: Request) -> str:
    """Why there is no number yet."""
    if cell.unavailable:
        return f"unavailable: {cell.unavailable}"
    if not prepared(cell, request.dataset):
        return f"{cell.setting['dataset']} is not prepared"
    return "no number" if stored.record(stored.experiment(cell)) else "not run"


def as_markdown(rows: Sequence[Row], headings: Row = HEADINGS) -> str:
    """Pipes and dashes."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_latex(rows: Sequence[Row], headings: Row = HEADINGS) -> str:
    """A tabular, as booktabs has it."""
    special = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "±": r"$\pm$", "–": "--", "λ": r"$\lambda$"})
    body = [" & ".join(cell.translate(special) for cell in row) + r" \\" for row in rows]
    parts = [rf"\begin{{tabular}}{{{'l' * len(headings)}}}", r"\toprule", " & ".join(headings) + r" \\", r"\midrule"]
    return "\n".join([*parts, *body, r"\bottomrule", r"\end{tabular}"])


def as_csv(rows: Sequence[Row], headings: Row = HEADINGS) -> str:
    """Comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue().rstrip("\n")


def as_text(rows: Sequence[Row], headings: Row = HEADINGS, title: str = "", note: str = "") -> str:
    """Aligned columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(*headings, box=SIMPLE_HEAD, title=title, caption=note, title_justify="left", caption_justify="left")
    for row in rows:
        grid.add_row(*row)
    console = Console(width=150, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return captured.get().rstrip()


FORMS = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
