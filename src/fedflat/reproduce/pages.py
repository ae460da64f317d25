"""The pages about the papers: docs/reproduction.md, and one page per paper with all its tables."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedflat.reproduce import fedgf_tables, fedgloss_settings, fedsol_settings, flsam_tables
from fedflat.reproduce.cells import PAPERS, TABLES, cell_source, find_table
from fedflat.reproduce.claims import CLAIMS, Claim, verdict
from fedflat.reproduce.leaderboard import leaderboard_page
from fedflat.reproduce.method_pages import write_method_results
from fedflat.reproduce.render import REPLACE, as_markdown, table_rows
from fedflat.reproduce.results import StoredResults
from fedflat.reproduce.summary import (
    BELIEVED,
    COUNT_HEADINGS,
    cause_rows,
    cell_verdicts,
    claim_rows,
    count_rows,
    without_replaced,
)
from fedflat.reproduce.table import MEASURES, PaperTable, TableCell
from fedflat.reproduce.train import ReproduceRequest
from fedflat.runs.folder import write_atomically

MODULES: dict[str, Any] = {  # their docstrings tell the settings
    "fedsol": fedsol_settings,
    "fedgf": fedgf_tables,
    "fedgloss": fedgloss_settings,
    "flsam": flsam_tables,
}
CAUSE_HEADINGS = ("cell", "paper", "ours", "cause, or what was excluded")
INTRODUCTION = """# Reproduction of the papers

The tables of four papers, and what fedflat gets for the same settings: LINKS. One column of a table:

```
fedflat reproduce fedsol/table2 --cells "cifar10 lda-0.1 *" --variant authors --show
```
"""
EXAMPLE = ("fedsol/table2", "cifar10 lda-0.1 * authors")
USE = """A row is a cell of the paper's table. `paper` is the printed number, `ours` the mean over our seeds, and the
verdict says whether the two agree ([how](#verdicts)). Without `--show` the command trains what is missing first.
`fedflat reproduce` alone lists all tables with the number of cells done and missing.

Every number of ours was trained by such a command. It is stored in [results/](../results/README.md) with its
configuration, seeds, curve, commit, versions and hardware. This page, the pages of the papers and the
[leaderboard](leaderboard.md), which ranks methods by setting, are written from there by `fedflat reproduce --show`. Do
not edit them.
"""
ALPHA = """α in the name of a cell follows one of
[two conventions](data-partitions.md#the-two-dirichlet-conventions):

- `alpha-0.05` (FedGF, FedGloSS) is `--partition dirichlet --alpha 0.05`: each client draws its mix of classes from
  Dirichlet(α / classes); clients have equal sizes.
- `lda-0.1` (FedSOL) is `--partition lda --alpha 0.1` (`lda-released` in the variant `authors`): each class draws its
  shares over the clients from Dirichlet(α); clients differ in size. `dir-0.1` (FL-SAM) is `lda-equal`: `lda` with
  clients of equal size.
"""
COUNTS = """## Summary

How many cells of each table were run, and their verdicts. Only runs on the original images count here. Cells that were
trained only on copies of CIFAR-10 that had been saved as JPEG are in an appendix. A table can have several variants:

- `paper`: the settings that the paper's text gives.
- `authors`: all settings that we believe produced the printed numbers.
- `released`: the settings of the released code.

The pages of the papers explain each. "Within 2 sd" includes methods that fail as printed. "Not reproduced" includes
methods that are printed as failing and train here.
"""
PAPER_INTRODUCTION = """Every table and figure of the paper, beside what fedflat gets. To print one:

```
fedflat reproduce TABLE --show
```

Without `--show` the command trains what is missing first. Accuracies are in percent, ± is the standard deviation over
seeds. [reproduction.md](reproduction.md) sums up and explains the [verdicts](reproduction.md#verdicts). This page is
written by `fedflat reproduce --show` from [results/](../results/README.md).
"""
CLAIMS_OF_PAPERS = """## Claims

What the papers say, checked with our numbers ([how](#when-a-claim-holds)).

"""
COMMANDS = """## Commands

```
fedflat reproduce fedsol/table2 --cells "cifar10 *" --seeds 0 --budget 20m   # stop after 20 minutes; repeat to continue
fedflat reproduce fedsol/table1 fedsol/table5 --cells "cifar10 *"   # several tables; what they share is trained once
fedflat reproduce --queue --budget 20m                        # train what is most useful next, over all tables
fedflat reproduce --queue --show                              # list the queue
fedflat reproduce fedgloss/table3 --cells "cnn *" --dataset digits --rounds 20   # a quick try
fedflat reproduce fedsol/table2 --show --latex                # --markdown, --latex, --csv
fedflat reproduce --delete-jpeg                               # delete what was trained on JPEG images
```

A cell is named by its words, such as `fedsol/table2 cifar10 lda-0.1 fedavg`. `--cells` takes patterns; the words of a
pattern must match words of the cell in order. Cells that differ only in the partition are trained together, with all
their seeds, as lanes of one run. Cells of several tables with equal settings share one result.

`--queue` needs no other option. Start the command twice, and two processes share the work: each trains what the other
does not. Run folders are kept in `runs/reproduce/`. With `--budget`, training stops at the end of the round in which
the time is over; the same command continues from there. Stored results are those of the checkout that the command
runs from; a package that is installed without a checkout uses `results/` of the current folder.
"""


def write_pages(request: ReproduceRequest, out: Path) -> list[Path]:
    """Write the page about all papers, and beside it one page per paper, the leaderboard and results of methods.

    Args:
        request: where the results are.
        out: the first page, a Markdown file that is replaced; the others are called OUT-PAPER.md and leaderboard.md. In
            methods/NAME.md, where there is such a page, what is between its marks is replaced.

    Returns the files; of the methods' pages those that changed.
    """
    stored = request.stored()
    pages = {out: _main_page(stored, request, out)}
    pages |= {_paper_path(out, paper): _paper_page(paper, stored, request) for paper in PAPERS}
    pages[out.with_name("leaderboard.md")] = leaderboard_page(stored)
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        write_atomically(path, text)
    return [*pages, *write_method_results(stored, out.with_name("methods"))]


def _paper_path(out: Path, paper: str) -> Path:
    return out.with_name(f"{out.stem}-{paper}.md")


def _main_page(stored: StoredResults, request: ReproduceRequest, out: Path) -> str:
    verdicts = without_replaced(cell_verdicts(stored))
    links = ", ".join(f"[{title}]({_paper_path(out, paper).name})" for paper, title in PAPERS.items())
    causes = cause_rows(verdicts, stored, request.results)
    parts = [
        INTRODUCTION.replace("LINKS", links),
        _example(stored, request),
        USE,
        ALPHA,
        COUNTS,
        as_markdown(count_rows([each for each in verdicts if not each.jpeg]), COUNT_HEADINGS),
        CLAIMS_OF_PAPERS + as_markdown(claim_rows(stored), ("table", "claim", "variant", "here")),
        _findings(request.results, "findings.md", "## Findings"),
        COMMANDS,
        "## Verdicts\n\n" + _explanation(verdict),
        "## When a claim holds\n\n" + _explanation(Claim),
        f"## Appendix: cells not reproduced\n\n{as_markdown(causes, CAUSE_HEADINGS)}" if causes else "",
        _jpeg_counts([each for each in verdicts if each.jpeg]),
    ]
    return _joined(parts)


def _example(stored: StoredResults, request: ReproduceRequest) -> str:
    """Return the rows of EXAMPLE."""
    name, pattern = EXAMPLE
    table = find_table(name)
    cells = [cell for cell in table.variants if cell.matches([pattern])]
    return as_markdown(table_rows(table, cells, stored, request))


def _jpeg_counts(verdicts: Sequence[Any]) -> str:
    """Return the table of counts of cells that were trained on JPEG images only."""
    if not verdicts:
        return ""
    text = "These cells were trained on CIFAR-10 images that went through JPEG, and not yet on the original ones."
    return "\n\n".join([f"## Appendix: {REPLACE}", text, as_markdown(count_rows(verdicts), COUNT_HEADINGS)])


def _paper_page(paper: str, stored: StoredResults, request: ReproduceRequest) -> str:
    tables = [table for table in TABLES.values() if table.name.startswith(f"{paper}/")]
    parts = [
        f"# {PAPERS[paper]}: all tables and figures",
        PAPER_INTRODUCTION.replace("TABLE", tables[0].name),
        ALPHA,
        _claims(paper, stored),
        "## Tables and figures",
        *(_section(table, stored, request) for table in tables),
        "## Appendix: settings\n\n" + (MODULES[paper].__doc__ or "").partition("\n\n")[2].strip(),
        _findings(request.results, f"findings-{paper}.md", "## Appendix: findings"),
    ]
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _claims(paper: str, stored: StoredResults) -> str:
    """Return each claim of a paper, under every variant that was compared, with our numbers."""
    own = [claim.under(v) for claim in CLAIMS if claim.table.startswith(f"{paper}/") for v in BELIEVED]
    compared = [claim for claim in own if claim.comparisons(stored)]
    rows = [(c.table, c.text, c.variant or "paper", c.check(stored), c.numbers_text(stored)) for c in compared]
    table = as_markdown(rows, ("table", "claim", "variant", "here", "best, and its strongest rival"))
    return f"## Claims\n\n{table}" if rows else ""


def _explanation(documented: Any) -> str:
    """Return a docstring without its first line and its arguments."""
    return (inspect.getdoc(documented) or "").partition("\n\n")[2].partition("\n\nArgs:")[0]


def _findings(results: Path, name: str, heading: str) -> str:
    """Return a section that is written by hand, from a file beside the results."""
    notes = results / name
    return f"{heading}\n\n" + notes.read_text(encoding="utf-8").replace("](../docs/", "](") if notes.exists() else ""


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
