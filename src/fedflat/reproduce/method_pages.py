"""The section "Results" of the pages docs/methods/NAME.md, from the stored results, by the rules of the leaderboard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedflat.methods import METHODS
from fedflat.reproduce.cells import PAPERS
from fedflat.reproduce.leaderboard import last_tenth, method_text, ranked_settings, setting_title, spread_text
from fedflat.reproduce.render import TextRow, as_markdown
from fedflat.reproduce.results import StoredRecord, StoredResults
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.folder import write_atomically

BEGIN = "<!-- results: written by fedflat reproduce --show; do not edit -->"
END = "<!-- end of results -->"
ABOUT = """Test accuracy in percent, averaged over the last tenth of the evaluations; mean ± standard deviation over
seeds, where there is more than one. Hyper-parameters are the papers', not tuned by us. Each setting leads to its table
in the [leaderboard](../leaderboard.md), which has the commands. "10 of 100" counts the clients of a round and all
clients; [data-partitions.md](../data-partitions.md) explains partitions, α and s."""
NO_RESULT = "No result is published yet."
ONLY_JPEG = """No result on the original images is published yet. Results on images that went through JPEG, which the
leaderboard leaves out, are in the tables of """


def write_method_results(stored: StoredResults, folder: Path) -> list[Path]:
    """Write the results between the marks of each method's page, and return the files that changed.

    Args:
        stored: the stored results.
        folder: the folder of the pages NAME.md; methods without a page there are left out.
    """
    pages = {folder / f"{name}.md": results for name, results in results_by_method(stored).items()}
    changed = []
    for page, results in pages.items():
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        if (new := with_results(old, results)) != old:
            write_atomically(page, new)
            changed.append(page)
    return changed


def with_results(page: str, results: str) -> str:
    """Return the text of a page with other results between its marks; the same text if it has no marks."""
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    return between.sub(lambda _: f"{BEGIN}\n\n{results}\n\n{END}", page)


def results_by_method(stored: StoredResults) -> dict[str, str]:
    """Return the results of every method in Markdown: a row for each setting of the leaderboard, beside FedAvg's."""
    rows: dict[str, list[TextRow]] = {name: [] for name in METHODS}
    for setting in ranked_settings(stored):
        for record in setting:
            rows.setdefault(_method_name(record), []).append(_row(record, setting))
    return {name: _table(name, own) if own else _without_table(name, stored) for name, own in rows.items()}


def _method_name(record: StoredRecord) -> str:
    return METHODS.name_of(type(experiment_from_dict(record.config).method))


def _row(record: StoredRecord, setting: Sequence[StoredRecord]) -> TextRow:
    """Return setting, method, accuracy, FedAvg's accuracy and the number of seeds."""
    title = setting_title(record)
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    fedavg = next((spread_text(last_tenth(r)) for r in setting if _method_name(r) == "fedavg"), "–")
    method = method_text(experiment_from_dict(record.config).method)
    accuracy, seeds = spread_text(last_tenth(record)), str(len(record.seeds))
    return f"[{title}](../leaderboard.md#{anchor})", f"`{method}`", accuracy, fedavg, seeds


def _table(name: str, rows: Sequence[TextRow]) -> str:
    """Return the table; that of FedAvg needs no column of FedAvg."""
    headings: TextRow = ("setting", "method", "accuracy", "FedAvg", "seeds")
    columns = [0, 1, 2, 4] if name == "fedavg" else [0, 1, 2, 3, 4]
    chosen = [tuple(row[column] for column in columns) for row in [headings, *rows]]
    return f"{ABOUT}\n\n{as_markdown(chosen[1:], chosen[0])}"


def _without_table(name: str, stored: StoredResults) -> str:
    """Return that the leaderboard has no row of a method, and where its results on JPEG images are."""
    records = [record for by_rounds in stored.records.values() for record in by_rounds.values()]
    papers = sorted({r.cell.partition("/")[0] for r in records if r.jpeg and _method_name(r) == name})
    links = [f"[{PAPERS[paper]}](../reproduction-{paper}.md)" for paper in papers]
    return f"{ONLY_JPEG}{' and '.join(links)}." if links else NO_RESULT
