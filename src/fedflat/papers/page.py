"""docs/reproduction.md, rebuilt from the stored results."""

from __future__ import annotations

from pathlib import Path

from fedflat.engine.folder import write_atomically
from fedflat.papers import verdict
from fedflat.papers.catalogue import TABLES
from fedflat.papers.cells import PAPERS
from fedflat.papers.claims import CLAIMS
from fedflat.papers.measures import MEASURES
from fedflat.papers.plan import Request
from fedflat.papers.render import as_markdown, rows
from fedflat.papers.table import Table
from fedflat.papers.values import Stored

INTRODUCTION = """# Reproduction of the three papers

Written by `fedflat reproduce --show` from the files in `results/`; do not edit. Every number of ours is from a file
there with its configuration, seeds, curve, versions and hardware. `fedflat reproduce` lists the tables, and
`fedflat reproduce fedsol/table2 --cells "cifar10 lda-0.1 *"` trains what is missing of one. Accuracies are in percent.
"""


def page(request: Request, out: Path) -> None:
    """Write the page."""
    stored = request.stored()
    tables = [_section(table, stored, request) for table in TABLES.values()]
    parts = [INTRODUCTION, _claims(stored), _verdicts(), "## Tables and figures", *tables]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join(part.strip() for part in parts) + "\n")


def _claims(stored: Stored) -> str:
    lines = [(claim.table, claim.text, claim.check(stored)) for claim in CLAIMS]
    return "## Claims\n\n" + as_markdown(lines, ("table", "claim", "here"))


def _verdicts() -> str:
    return "## Verdicts\n\n" + (verdict.__doc__ or "").strip()


def _section(table: Table, stored: Stored, request: Request) -> str:
    """One table: what it shows, what is run of it, and the numbers."""
    paper, _, place = table.name.partition("/")
    cells = [*table.cells, *table.variants]
    run = [cell for cell in cells if stored.ours(cell)]
    never = sorted({cell.unavailable for cell in table.cells if cell.unavailable})
    about = sorted({MEASURES[cell.measure].text for cell in table.cells})
    lines = [
        f"### {PAPERS[paper]}, {place}: {table.title}",
        f"{'; '.join(about).capitalize()}. {len([c for c in run if not c.variant])} of {len(table.cells)} cells run."
        + (f" {table.note}" if table.note else "")
        + "".join(f" Not available: {reason}." for reason in never),
    ]
    return "\n\n".join([*lines, *([as_markdown(rows(table, run, stored, request))] if run else [])])
