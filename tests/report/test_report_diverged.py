"""A run whose loss grows beyond all numbers does not flatten the other runs' lines, and methods alone are no sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from browsers import errors, visit
from matplotlib.axes import Axes
from selenium import webdriver

import fedflat as ff
from fedflat.cli import main
from fedflat.report.charts import Chart, Curves
from fedflat.report.html import page_contents
from fedflat.report.matplotlib_figures import FIGURE_STYLES, draw_curves
from fedflat.report.run_labels import label_runs
from fedflat.runs.read import read_stored_runs

MakeRun = Callable[..., Path]
RANGE = "return document.querySelector('#loss .plot')._fullLayout.yaxis.range"
BANDS = "return document.querySelector('#loss .plot').data.filter(trace => trace.fill).length"
FRONTIER = (
    "return document.querySelector('#pareto-bytes .plot').data.find(t => t.name === 'Pareto frontier').line.shape"
)
LOST = "return document.querySelector('#loss .plot').data.filter(t => t.meta === 'lost').map(t => [t.x, t.y])[0]"


@pytest.fixture
def runs(make_run: MakeRun, tmp_path: Path) -> Path:
    """FedAvg and FedSAM with losses of 0.5 to 0.1, and FedProx, whose loss is 10¹² in round 2 and then not finite."""
    make_run("runs/steady", [0.5, 0.7, 0.9])
    make_run("runs/other", [0.5, 0.6, 0.7], method=ff.FedSAM())
    broken = make_run("runs/broken", [0.5, 0.1, 0.1], method=ff.FedProx(mu=38.0), lost=True)
    rows = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["loss"] = {1: 2.3, 2: 1e12, 3: None}[row["round"]]
    (broken / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "runs"


def test_the_scale_is_that_of_the_other_runs(browser: webdriver.Chrome, runs: Path, tmp_path: Path) -> None:
    assert main(["report", str(runs), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html")
    low, high = browser.execute_script(RANGE)
    assert -0.2 < low < high < 0.8
    assert browser.execute_script(LOST) == [[2], [pytest.approx(high)]], "the cross is at the edge"
    assert browser.execute_script(BANDS) == 2, "the diverged run's would be a bar over the whole height"
    assert browser.execute_script(FRONTIER) == "hv", "between two points nothing is better than the left one"
    browser.execute_script("select(RUNS.filter(run => run.diverged)); drawAll()")
    assert browser.execute_script(RANGE)[1] > 1e11, "alone it is shown as it is"
    assert not browser.execute_script("return document.querySelector('#sweep').offsetParent"), "three methods, no sweep"
    order = "return document.querySelector('#wins .plot')._fullLayout.yaxis.range"
    browser.execute_script("select(RUNS); drawAll()")
    assert browser.execute_script(order) == [2.5, -0.5], "the first method is at the top"
    assert errors(browser) == []


def test_figures_for_papers_have_the_same_scale(runs: Path) -> None:
    charts = page_contents(label_runs(read_stored_runs([runs])[0])).charts
    loss, pareto = (drawn(charts, key) for key in ("loss", "pareto-bytes"))
    low, high = loss.get_ylim()
    assert -0.2 < low < high < 0.8
    assert len(loss.collections) == 2, "without the diverged run's band"
    assert pareto.get_lines()[0].get_drawstyle() == "steps-post"


def drawn(charts: list[Chart], key: str) -> Axes:
    (chart,) = (chart for chart in charts if isinstance(chart, Curves) and chart.key == key)
    return draw_curves([chart], 3.3, FIGURE_STYLES["plain"]).axes[0]
