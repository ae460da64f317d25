"""Significance, wins, correlations and frontiers are those of the selected runs, as Python computes them of these."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browsers import visit
from selenium import webdriver
from synthetic_runs import write_analysis, write_run

import fedflat as ff
from fedflat.cli import main
from fedflat.report.charts import ChartLine
from fedflat.report.comparison_charts import rank_correlation_text
from fedflat.report.html import page_contents
from fedflat.report.page_data import PageContents
from fedflat.report.page_tables import flatness_table, results_table
from fedflat.report.run_labels import label_runs
from fedflat.report.significance import difference_p_value, mark_best
from fedflat.runs.read import StoredRun, read_stored_runs

Page = webdriver.Chrome
METHODS = {"fedavg": ff.FedAvg(), "fedprox": ff.FedProx(), "fedsam": ff.FedSAM()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings of three methods whose seeds differ by more or less, all analysed; a run of the second diverges."""
    path, draw = tmp_path_factory.mktemp("statistics"), random.Random(4)
    for lr in (0.1, 0.01):
        for n, (name, method) in enumerate(METHODS.items()):
            accuracies, less = [0.4, 0.5 + 0.1 * n], draw.choice([0.1, 0.101, 0.13])
            lost = lr == 0.01 and name == "fedsam"
            seconds = draw.uniform(1, 9)
            run = write_run(
                path / "runs" / f"{name}-{lr}", accuracies, seconds, less=less, method=method, lr=lr, lost=lost
            )
            write_analysis(run, draw.uniform(0.5, 2))
    assert main(["report", str(path / "runs"), "--out", str(path / "page.html")]) == 0
    return path


def read_runs(folder: Path) -> list[StoredRun]:
    return label_runs(read_stored_runs([folder / "runs"])[0], None, ())


def random_values(draw: random.Random, seeds: int) -> dict[int, float]:
    chosen = draw.sample(range(6), seeds)
    return {seed: round(draw.gauss(0.5, 0.1), draw.choice([1, 3, 9])) for seed in chosen}


def test_t_tests_are_those_of_scipy(browser: Page, folder: Path) -> None:
    visit(browser, folder / "page.html", only=("accuracy",))
    draw = random.Random(0)
    pairs = [(random_values(draw, draw.randint(2, 6)), random_values(draw, draw.randint(2, 6))) for _ in range(300)]
    pairs += [({0: 0.5, 1: 0.5}, {2: 0.5, 3: 0.5}), ({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5})]
    found = browser.execute_script("return arguments[0].map(([a, b]) => differenceP(a, b))", pairs)
    assert found == pytest.approx([difference_p_value(a, b) for a, b in pairs], rel=1e-8, abs=1e-13)
    groups = [[random_values(draw, draw.randint(1, 4)) for _ in range(draw.randint(1, 5))] for _ in range(200)]
    for higher in (True, False):
        marks = browser.execute_script("return arguments[0].map(g => markBest(g, arguments[1]))", groups, higher)
        assert marks == [mark_best(group, higher) for group in groups]


def test_rank_correlations_are_those_of_scipy(browser: Page, folder: Path) -> None:
    visit(browser, folder / "page.html", only=("accuracy",))
    draw, cases = random.Random(1), []
    for _ in range(100):
        count, digits = draw.randint(3, 12), draw.choice([0, 1, 6])
        x, y = ([round(draw.gauss(0, 2), digits) for _ in range(count)] for _ in range(2))
        cases.append((x, y))
    cases += [([1.0, 2, 3, 4, 5], [1.0, 4, 9, 16, 25]), ([1.0, 2, 3, 4, 5], [2.0] * 5)]
    found = browser.execute_script("return arguments[0].map(([x, y]) => correlationText([{x, y}]))", cases)
    assert found == [rank_correlation_text([ChartLine("", 0, x, [*y])]) for x, y in cases]


def expected_marks(runs: Sequence[StoredRun], contents: PageContents) -> list[str]:
    """Return the texts of the cells that are marked as best or tied."""
    tables = [results_table(runs, contents.settings, 0.8), flatness_table(runs, contents.settings, contents.documents)]
    return [f"{cell.mark} {cell.text}" for table in tables for row in table.rows for cell in row if cell.mark]


MARKS = """return [...document.querySelectorAll('#headline tr:not([hidden]) td, #flat tr:not([hidden]) td')]
.filter(cell => ['best', 'tied'].includes(cell.className)).map(cell => `${cell.className} ${cell.textContent}`)"""
HEAT = "const { x, y, z, text } = document.querySelector('#wins .plot').data[0]; return [z, text]"
CAPTIONS = (
    """return CHARTS.filter(c => c.correlated).map(c => document.querySelector(`#${c.key} figcaption p`).textContent)"""
)
FRONTIER = """return CHARTS.filter(c => c.frontier).map(c => document.querySelector(`#${c.key} .plot`).data
.filter(t => t.name === 'Pareto frontier').map(t => [t.x, t.y])[0])"""


SELECT = "view.hidden = new Set(arguments[0].map(n => RUNS[n].id)); follow(); drawAll()"


def test_everything_is_of_the_selected_runs(browser: Page, folder: Path) -> None:
    runs = read_runs(folder)
    visit(browser, folder / "page.html")
    for hidden in ([], [2], [0, 3], [2, 5], [1, 4], [0, 1, 5], []):
        browser.execute_script(SELECT, hidden)
        kept = [run for n, run in enumerate(runs) if n not in hidden]
        contents = page_contents(kept)
        assert browser.execute_script(MARKS) == expected_marks(kept, contents)
        charts: dict[str, Any] = {chart.key: chart for chart in contents.charts}
        assert browser.execute_script(HEAT) == [charts["wins"].grids[0].z, charts["wins"].grids[0].text]
        correlated = [chart for chart in contents.charts if getattr(chart, "correlated", False)]
        assert correlated
        assert browser.execute_script(CAPTIONS) == [chart.caption for chart in correlated]
        lines = [charts[f"pareto-{cost}"].lines[0] for cost in ("bytes", "seconds")]
        assert browser.execute_script(FRONTIER) == [[line.x, line.y] for line in lines]


def test_a_matrix_of_runs_has_the_selected_rows_and_columns(browser: Page, folder: Path) -> None:
    visit(browser, folder / "page.html", only=("accuracy",))
    browser.execute_script(SELECT, [1])
    grid = {"members": [0, 1, 3], "x_names": [*"abc"], "z": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "text": [[*"123"]] * 3}
    found = browser.execute_script("return selectedRows(arguments[0])", grid)
    assert (found["z"], found["x_names"], found["y_names"]) == ([[1, 3], [7, 9]], ["a", "c"], ["a", "c"])
    assert (found["x"], found["text"]) == ([0, 1], [["1", "3"]] * 2)
