"""Tables as text, Markdown, LaTeX or CSV, and the page docs/reproduction.md."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from fedflat.reproduce import claims, fedgf_tables, fedgloss_tables, fedsol_tables, results
from fedflat.reproduce.cells import TABLES, cell_source
from fedflat.reproduce.claims import CLAIMS
from fedflat.reproduce.results import StoredResults, our_text, verdict
from fedflat.reproduce.table import MEASURES, PaperTable, TableCell
from fedflat.reproduce.train import ReproduceRequest, data_prepared
from fedflat.runs.folder import write_atomically

HEADINGS = ("cell", "paper", "ours", "difference", "verdict")


TextRow = tuple[str, ...]


def table_rows(
    table: PaperTable, cells: Sequence[TableCell], stored: StoredResults, request: ReproduceRequest
) -> list[TextRow]:
    """One row per cell."""
    return [_row(table, cell, stored, request) for cell in cells]


def _row(table: PaperTable, cell: TableCell, stored: StoredResults, request: ReproduceRequest) -> TextRow:
    ours = stored.ours(cell)
    name = " ".join(cell.words)
    if ours is None:
        return name, printed_text(cell), "–", "", missing_text(cell, stored, request)
    if not stored.comparable(cell, ours):
        where = f"on {request.dataset}, " if request.dataset else ""
        return (
            name,
            printed_text(cell),
            our_text(cell, ours),
            "",
            f"{where}{ours.rounds} of {cell.setting['rounds']} rounds",
        )
    gap = math.nan if cell.printed is None else ours.mean - cell.printed
    return (
        name,
        printed_text(cell),
        our_text(cell, ours),
        f"{gap:+.2f}" if math.isfinite(gap) else "",
        verdict(table, cell, stored),
    )


def printed_text(cell: TableCell) -> str:
    """The number as printed."""
    if cell.printed is None:
        return "does not converge" if cell.failed else "–"
    if math.isinf(cell.printed):
        return "not reached"
    if cell.failed:
        return f"{cell.printed:.2f}, failed"
    return f"{cell.printed:g}" if cell.spread is None else f"{cell.printed:.2f} ± {cell.spread:.2f}"


def missing_text(cell: TableCell, stored: StoredResults, request: ReproduceRequest) -> str:
    """Why there is no number yet."""
    if cell.unavailable:
        return f"unavailable: {cell.unavailable}"
    if not data_prepared(cell, request.dataset):
        return f"{cell.setting['dataset']} is not prepared"
    return "no number" if stored.record(stored.experiment(cell)) else "not run"


def as_markdown(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """Pipes and dashes."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_latex(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """A tabular, as booktabs has it."""
    special = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "±": r"$\pm$", "–": "--", "λ": r"$\lambda$"})
    body = [" & ".join(cell.translate(special) for cell in row) + r" \\" for row in rows]
    parts = [rf"\begin{{tabular}}{{{'l' * len(headings)}}}", r"\toprule", " & ".join(headings) + r" \\", r"\midrule"]
    return "\n".join([*parts, *body, r"\bottomrule", r"\end{tabular}"])


def as_csv(rows: Sequence[TextRow], headings: TextRow = HEADINGS) -> str:
    """Comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue().rstrip("\n")


def as_text(rows: Sequence[TextRow], headings: TextRow = HEADINGS, title: str = "", note: str = "") -> str:
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


FORMATS = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}


INTRODUCTION = """# Reproduction of the three papers

Written by `fedflat reproduce --show` from the files in `results/`; do not edit. Every number of ours is from a file
there with its configuration, seeds, curve, versions and hardware ([format](../results/README.md)). Accuracies are in
percent, ± is the standard deviation over seeds.

```
fedflat reproduce                                             # every table and figure: done, missing, out of reach
fedflat reproduce fedsol/table2 --cells "cifar10 lda-0.1 *"   # train what is missing of these cells, print them
fedflat reproduce fedsol/table2 --cells "cifar10 *" --seeds 0 --budget 20m   # stop in time; repeat it to go on
fedflat reproduce fedsol/table1 fedsol/table5 --cells "cifar10 *"   # several tables; what they share is trained once
fedflat reproduce fedsol/table2 --variant released            # where the released code differs from the paper
fedflat reproduce fedgloss/table3 --cells "cnn *" --dataset digits --rounds 20   # a quick try
fedflat reproduce fedsol/table2 --show --latex                # print what is stored: --markdown, --latex, --csv
```

A cell is named by its words, such as `fedsol/table2 cifar10 lda-0.1 fedavg`; `--cells` takes patterns whose words match
words of the cell in order. Cells that differ only in how data are dealt are trained together, with all their seeds, as
lanes of one run; cells of other tables with equal settings share the result. Run folders are kept in `runs/reproduce/`:
an interrupted command continues from the last checkpoint when it is repeated. Times are estimated from stored results
on the same hardware, otherwise from the first rounds; with `--budget`, what ends in time is trained first, and the rest
is stopped in time and goes on with the next call.
"""


def reproduction_page(request: ReproduceRequest, out: Path) -> None:
    """Write the page."""
    stored = request.stored()
    tables = [_section(table, stored, request) for table in TABLES.values()]
    notes = [_claims(stored), _findings(request.results), _verdicts(), _settings()]
    parts = [INTRODUCTION, *notes, "## Tables and figures", *tables]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join(part.strip() for part in parts if part) + "\n")


def _claims(stored: StoredResults) -> str:
    """Each claim, whether it holds, and the numbers that say so."""
    both = [one for claim in CLAIMS for one in (claim, claim.released())]
    every = [claim for claim in both if not claim.variant or claim.compared(stored)]
    lines = [(claim.table, claim.text, claim.check(stored), claim.figures(stored)) for claim in every]
    table = as_markdown(lines, ("table", "claim", "here", "best, and its strongest rival"))
    return "\n\n".join(["## Claims", (claims.__doc__ or "").strip(), table])


def _findings(results: Path) -> str:
    """What was found out about numbers that differ, as people wrote it down beside the results."""
    notes = results / "findings.md"
    if not notes.exists():
        return ""
    return "## Findings\n\n" + notes.read_text(encoding="utf-8").replace("](../docs/", "](")


def _verdicts() -> str:
    return "## Verdicts\n\n" + (results.__doc__ or "").strip()


def _settings() -> str:
    """What the papers say, what they leave open, and what we took."""
    return "\n\n".join(
        ["## Settings", *((module.__doc__ or "").strip() for module in (fedsol_tables, fedgf_tables, fedgloss_tables))]
    )


def _section(table: PaperTable, stored: StoredResults, request: ReproduceRequest) -> str:
    """One table: what it shows, what is run of it, and the numbers."""
    cells = [*table.cells, *table.variants]
    run = [cell for cell in cells if stored.ours(cell)]
    never = sorted({cell.unavailable for cell in table.cells if cell.unavailable})
    about = "; ".join(dict.fromkeys(MEASURES[cell.measure].text for cell in table.cells))
    lines = [
        f"### {cell_source(table.cells[0])}: {table.title}",
        f"{about[0].upper()}{about[1:]}. {len([c for c in run if not c.variant])} of {len(table.cells)} cells run."
        + (f" {table.note}" if table.note else "")
        + "".join(f" Not available: {reason}." for reason in never),
    ]
    if run:
        lines += [as_markdown(table_rows(table, run, stored, request)), _origin(run, stored)]
    return "\n\n".join(filter(None, lines))


def _origin(cells: Sequence[TableCell], stored: StoredResults) -> str:
    """On which data, hardware and arithmetic the numbers were got."""
    records = [record for cell in cells if (record := stored.record(stored.experiment(cell)))]
    runs = [run for record in records for run in record.runs]
    found = [f"{run['data']} on {run['versions']['hardware']}, {run['precision']}" for run in runs]
    return f"Trained on {'; '.join(dict.fromkeys(found))}." if found else ""
