"""docs/reproduction.md, rebuilt from the stored results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedflat.papers import claims, fedgf, fedgloss, fedsol, verdict
from fedflat.papers.catalogue import TABLES
from fedflat.papers.cells import source
from fedflat.papers.claimed import CLAIMS
from fedflat.papers.measures import MEASURES
from fedflat.papers.plan import Request
from fedflat.papers.render import as_markdown, rows
from fedflat.papers.table import Cell, Table
from fedflat.papers.values import Stored
from fedflat.runs.folder import write_atomically

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


def page(request: Request, out: Path) -> None:
    """Write the page."""
    stored = request.stored()
    tables = [_section(table, stored, request) for table in TABLES.values()]
    notes = [_claims(stored), _findings(request.results), _verdicts(), _settings()]
    parts = [INTRODUCTION, *notes, "## Tables and figures", *tables]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n\n".join(part.strip() for part in parts if part) + "\n")


def _claims(stored: Stored) -> str:
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
    return "## Verdicts\n\n" + (verdict.__doc__ or "").strip()


def _settings() -> str:
    """What the papers say, what they leave open, and what we took."""
    return "\n\n".join(["## Settings", *((module.__doc__ or "").strip() for module in (fedsol, fedgf, fedgloss))])


def _section(table: Table, stored: Stored, request: Request) -> str:
    """One table: what it shows, what is run of it, and the numbers."""
    cells = [*table.cells, *table.variants]
    run = [cell for cell in cells if stored.ours(cell)]
    never = sorted({cell.unavailable for cell in table.cells if cell.unavailable})
    about = "; ".join(dict.fromkeys(MEASURES[cell.measure].text for cell in table.cells))
    lines = [
        f"### {source(table.cells[0])}: {table.title}",
        f"{about[0].upper()}{about[1:]}. {len([c for c in run if not c.variant])} of {len(table.cells)} cells run."
        + (f" {table.note}" if table.note else "")
        + "".join(f" Not available: {reason}." for reason in never),
    ]
    if run:
        lines += [as_markdown(rows(table, run, stored, request)), _origin(run, stored)]
    return "\n\n".join(filter(None, lines))


def _origin(cells: Sequence[Cell], stored: Stored) -> str:
    """On which data, hardware and arithmetic the numbers were got."""
    records = [record for cell in cells if (record := stored.record(stored.experiment(cell)))]
    runs = [run for record in records for run in record.runs]
    found = [f"{run['data']} on {run['versions']['hardware']}, {run['precision']}" for run in runs]
    return f"Trained on {'; '.join(dict.fromkeys(found))}." if found else ""
