"""What a report about a set of runs contains, section by section, whoever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedflat.report.analyses import Documents, read_analyses
from fedflat.report.charts import Chart
from fedflat.report.curves import communication, learning
from fedflat.report.flat import flatness
from fedflat.report.holdings import holdings
from fedflat.report.measured import differences
from fedflat.report.probes import probed
from fedflat.report.settings import Settings, settings_of
from fedflat.runs.read import StoredRun


@dataclass(frozen=True)
class Contents:
    """Charts by section, what was analysed, what the runs were trained with, and what is missing and why."""

    sections: dict[str, list[Chart]]
    documents: list[Documents]
    settings: list[Settings]
    problems: list[str]

    @property
    def charts(self) -> list[Chart]:
        """All charts in order."""
        return [chart for charts in self.sections.values() for chart in charts]


def contents(runs: Sequence[StoredRun]) -> Contents:
    """Prepare every figure for which there are data."""
    documents, damaged = read_analyses(runs)
    held, missing = holdings(runs)
    sections: dict[str, list[Chart]] = {
        "Learning curves": [*learning(runs), *communication(runs)],
        "Data": [*held],
        "Probes": [*probed(runs)],
        "Flatness": [*flatness(runs, documents)],
    }
    settings = settings_of(runs)
    return Contents(sections, documents, settings, [*damaged, *missing, *differences(runs, settings, documents)])
