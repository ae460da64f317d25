"""Tables as text, Markdown, LaTeX or CSV, and the page docs/reproduction.md."""

from __future__ import annotations

import csv
import inspect
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedflat.reproduce import fedgf_tables, fedgloss_tables, fedsol_tables, flsam_tables
from fedflat.reproduce.cells import TABLES, cell_source
from fedflat.reproduce.claims import CLAIMS, Claim, our_text, verdict
from fedflat.reproduce.results import OurValue, StoredResults
from fedflat.reproduce.table import MEASURES, PaperTable, TableCell
from fedflat.reproduce.train import ReproduceRequest, data_prepared
from fedflat.runs.folder import write_atomically

TextRow = tuple[str, ...]
HEADINGS = ("cell", "paper", "ours", "difference", "verdict")


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
    return name, printed, our_text(cell, ours), shown, verdict(table, cell, stored)


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
INTRODUCTION = """# Reproduction of the three papers

```
fedflat reproduce                                             # list the tables: cells done, missing, not available
fedflat reproduce fedsol/table2 --cells "cifar10 lda-0.1 *"   # train what is missing of these cells, then print them
fedflat reproduce fedsol/table2 --cells "cifar10 *" --seeds 0 --budget 20m   # stop after 20 minutes; repeat to continue
fedflat reproduce fedsol/table1 fedsol/table5 --cells "cifar10 *"   # several tables; what they share is trained once
fedflat reproduce fedsol/table2 --variant released            # settings of the released code where the paper differs
fedflat reproduce fedgloss/table3 --cells "cnn *" --dataset digits --rounds 20   # a quick try
fedflat reproduce fedsol/table2 --show --latex                # print what is stored: --markdown, --latex, --csv
fedflat reproduce --show                                      # write this page
```

`fedflat reproduce --show` writes this page from the files in `results/`; do not edit it. Every number of ours comes
from one of these files, which also holds its configuration, seeds, curve, versions and hardware
([format](../results/README.md)). Accuracies are in percent. ± is the standard deviation over seeds.

A cell is named by its words, such as `fedsol/table2 cifar10 lda-0.1 fedavg`. `--cells` takes patterns; the words of a
pattern must match words of the cell in order. Cells that differ only in the partition are trained together, with all
their seeds, as lanes of one run. Cells of several tables with equal settings share one result. Training follows the
order of the tables.

Run folders are kept in `runs/reproduce/`. An interrupted command continues from the last checkpoint when it is
repeated. With `--budget`, training stops at the end of the round in which the time is over, and the same command
continues later.
"""


def reproduction_page(request: ReproduceRequest, out: Path) -> None:
    """Write the page about all tables and claims.

    Args:
        request: where the results are.
        out: the page, a Markdown file that is replaced.
    """
    stored = request.stored()
    notes = [_claims(stored), _findings(request.results), "## Verdicts\n\n" + _explanation(verdict), _settings()]
    tables = [_section(table, stored, request) for table in TABLES.values()]
    parts = [INTRODUCTION, *notes, "## Tables and figures", *tables]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join(part.strip() for part in parts if part) + "\n")


def _claims(stored: StoredResults) -> str:
    """Return the section about claims: each claim, whether it holds, and our numbers."""
    both = [one for claim in CLAIMS for one in (claim, claim.under("released"))]
    chosen = [claim for claim in both if not claim.variant or claim.comparisons(stored)]
    rows = [(claim.table, claim.text, claim.check(stored), claim.numbers_text(stored)) for claim in chosen]
    table = as_markdown(rows, ("table", "claim", "here", "best, and its strongest rival"))
    return "\n\n".join(["## Claims", _explanation(Claim), table])


def _explanation(documented: Any) -> str:
    """Return a docstring without its first line and its arguments."""
    return (inspect.getdoc(documented) or "").partition("\n\n")[2].partition("\n\nArgs:")[0]


def _findings(results: Path) -> str:
    """Return the section about numbers that differ, from findings.md beside the results."""
    notes = results / "findings.md"
    if not notes.exists():
        return ""
    return "## Findings\n\n" + notes.read_text(encoding="utf-8").replace("](../docs/", "](")


def _settings() -> str:
    """Return the section about settings: what the papers leave open and what we chose."""
    modules = (fedsol_tables, fedgf_tables, fedgloss_tables, flsam_tables)
    return "\n\n".join(["## Settings", *((module.__doc__ or "").strip() for module in modules)])


def _section(table: PaperTable, stored: StoredResults, request: ReproduceRequest) -> str:
    """Return the section of one table: what it shows, how many cells were run, and the numbers."""
    run = [cell for cell in (*table.cells, *table.variants) if stored.ours(cell)]
    reasons = sorted({cell.unavailable for cell in table.cells if cell.unavailable})
    about = "; ".join(dict.fromkeys(MEASURES[cell.measure].text for cell in table.cells))
    lines = [
        f"### {cell_source(table.cells[0])}: {table.title}",
        f"{about[0].upper()}{about[1:]}. {len([c for c in run if not c.variant])} of {len(table.cells)} cells run."
        + (f" {table.note}" if table.note else "")
        + "".join(f" Not available: {reason}." for reason in reasons),
    ]
    if run:
        lines += [as_markdown(table_rows(table, run, stored, request)), _origin(run, stored)]
    return "\n\n".join(filter(None, lines))


def _origin(cells: Sequence[TableCell], stored: StoredResults) -> str:
    """Return on which data, on which hardware and in which precision the cells were trained."""
    records = [record for cell in cells if (record := stored.record(stored.experiment(cell)))]
    runs = [run for record in records for run in record.runs]
    origins = [f"{run['data']} on {run['versions']['hardware']}, {run['precision']}" for run in runs]
    return f"Trained on {'; '.join(dict.fromkeys(origins))}." if origins else ""
