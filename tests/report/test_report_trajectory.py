"""The trajectory on the page, as a figure for a paper, and its damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsers import visit
from selenium import webdriver
from selenium.webdriver.common.by import By
from synthetic_runs import SETTINGS, TRAJECTORY, TRAJECTORY_CLIENTS, write_run

from fedflat.cli import main
from fedflat.report.analysis_files import read_analyses
from fedflat.report.flatness_charts import flatness_charts
from fedflat.report.html import page_contents
from fedflat.report.matplotlib_grids import draw_grids
from fedflat.runs.read import read_stored_runs


def write_trajectory(folder: Path, **changed: Any) -> Path:
    """Write a run with a trajectory."""
    run = write_run(folder, [0.5, 0.6])
    document = {"what": "trajectory", "samples": 9, "settings": SETTINGS, "seeds": {"0": {**TRAJECTORY, **changed}}}
    (run / "analysis").mkdir()
    (run / "analysis" / "trajectory.json").write_text(json.dumps(document))
    return run


def chart_of(folder: Path) -> Any:
    runs, _ = read_stored_runs([folder])
    return next(chart for chart in page_contents(runs).charts if chart.key == "trajectory")


def test_the_chart_has_the_path_the_clients_and_the_variance_on_its_axes(tmp_path: Path) -> None:
    chart = chart_of(write_trajectory(tmp_path / "run"))
    (grid,) = chart.grids
    (path,) = grid.trajectories
    assert (grid.x_label, grid.y_label) == ("PC 1 (88 %)", "PC 2 (10 %)")
    assert chart.rounds == [0, 2, 6]
    assert path.server == [(2, 1), (1, 0.5), (0, 0)]
    assert path.starts == [(2, 1), (1.5, 0.5), (0.25, 0)]
    assert path.clients == [[], [(1, 1), (2, 0)], [(-0.5, -0.5)]]
    assert (chart.low, chart.high) == (18, 34), "the highest loss of the server is at three quarters of the scale"
    assert "12 % of the clients' way" in chart.caption
    assert "The replay ended" not in chart.caption


def test_the_caption_tells_of_a_replay_that_ended_elsewhere(tmp_path: Path) -> None:
    chart = chart_of(write_trajectory(tmp_path / "run", replay_distance=0.25))
    assert chart.caption.endswith("The replay ended away from the stored model: run by 25% of its way.")


DAMAGE: list[dict[str, Any]] = [
    {"round": [0, 2]},
    {"server_y": [1.0]},
    {"clients": [{**TRAJECTORY_CLIENTS[0], "x": [1.0]}, TRAJECTORY_CLIENTS[1]]},
    {"clients": TRAJECTORY_CLIENTS[:1]},
    {"explained_2": None},
    {"loss": [[1.0]]},
]


@pytest.mark.parametrize("changed", DAMAGE)
def test_a_damaged_file_is_left_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    runs, _ = read_stored_runs([write_trajectory(tmp_path / "run", **changed)])
    documents, warnings = read_analyses(runs)
    assert len(warnings) == 1
    assert "trajectory.json: damaged" in warnings[0]
    assert [*flatness_charts(runs, documents)] == []


CHART = "CHARTS.find(chart => chart.key === 'trajectory')"
PATHS = """const [spokes, clients, , , server] = document.querySelector('#trajectory .plot').data.slice(1);
return [spokes.x, clients.x, clients.y, server.x, server.text]"""
MOVE = """const slider = document.querySelector('#trajectory [name=round]'); slider.value = arguments[0];
slider.dispatchEvent(new Event('input')); return slider.nextElementSibling.textContent"""


def test_a_slider_moves_through_the_rounds(
    browser: webdriver.Chrome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(write_trajectory(tmp_path / name, y=y)) for name, y in (("one", [-1, 0, 1]), ("two", [-1, 0, 2]))]
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    assert main(["report", *runs, "--out", str(page), "--figures", str(figures)]) == 0
    assert (figures / "trajectory.pdf").stat().st_size > 5000
    assert not (figures / "trajectory-3d.pdf").exists()
    visit(browser, page)
    spokes, x, _, way, _ = browser.execute_script(PATHS)
    assert (spokes, x, way) == ([0.25, -0.5, None], [-0.5], [2, 1, 0]), "the last round at first"
    assert browser.execute_script(MOVE, 1) == "2"
    spokes, x, y, way, text = browser.execute_script(PATHS)
    assert spokes == [1.5, 1, None, 1.5, 2, None]
    assert (x, y, way) == ([1, 2], [1, 0], [2, 1])
    assert text == ["FedAvg (one), round 0: loss 30.00", "FedAvg (one), round 2: loss 20.00"]
    assert browser.execute_script("return document.querySelectorAll('#trajectory [data-view=overlay]').length") == 0
    visit(browser, page, "#" + browser.current_url.partition("#")[2])
    assert browser.execute_script(PATHS)[3] == [2, 1], "the address holds the round"
    browser.execute_script("document.querySelectorAll('#runs li input')[0].click(); drawAll()")
    assert browser.execute_script("return document.querySelectorAll('#trajectory .panel:not([hidden])').length") == 1
    table = browser.execute_script(f"return rows({CHART})")
    assert [row[1:] for row in table if row[0].endswith("server, round 2")] == [[1, 0.5, 20]] * 2
    assert [row[1:] for row in table if row[0].endswith("client, round 6")] == [[-0.5, -0.5, ""]] * 2


SERVERS = """return document.querySelector('#trajectory .panel:not([hidden]) .plot').data
.filter(t => t.meta === 'line').map(t => [t.x, t.line.color])"""


def test_paths_on_one_surface_share_a_panel(browser: webdriver.Chrome, tmp_path: Path) -> None:
    runs = [
        write_trajectory(tmp_path / "runs" / "one"),
        write_trajectory(tmp_path / "runs" / "two", server_x=[2, 0, 1]),
    ]
    chart = chart_of(tmp_path / "runs")
    (grid,) = chart.grids
    assert (grid.name, grid.run, [path.run for path in grid.trajectories]) == ("2 runs, seed 0", None, [0, 1])
    assert "shows most of the servers' paths" in chart.caption
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    assert main(["report", *map(str, runs), "--out", str(page), "--figures", str(figures)]) == 0
    visit(browser, page)
    colours = browser.execute_script("return [colour(0), colour(1)]")
    assert browser.execute_script(SERVERS) == [[[2, 1, 0], colours[0]], [[2, 0, 1], colours[1]]]
    assert browser.find_element(By.CSS_SELECTOR, "#trajectory h4").text == "FedAvg (one)FedAvg (two)"
    browser.execute_script("document.querySelectorAll('#runs li input')[0].click(); drawAll()")
    assert browser.execute_script(SERVERS) == [[[2, 0, 1], colours[1]]]
    assert browser.find_element(By.CSS_SELECTOR, "#trajectory h4").text == "FedAvg (two)"
    browser.execute_script("document.querySelectorAll('#runs li input')[1].click(); drawAll()")
    assert not browser.find_elements(By.CSS_SELECTOR, "#trajectory .panel:not([hidden])")
    drawn = draw_grids(chart, 3.3)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["one", "two"]


HEIGHT = f"return arguments[0].map(point => heightAt({{...{CHART}, high: 1e9}}, {CHART}.grids[0], point))"


def test_paths_follow_the_surface(browser: webdriver.Chrome, tmp_path: Path) -> None:
    assert main(["report", str(write_trajectory(tmp_path / "run")), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html")
    z = TRAJECTORY["loss"]
    found = browser.execute_script(HEIGHT, [[-1, -1], [1, 0], [3, 1], [0, 0], [2, 0.5]])
    middle = (z[1][1] + z[1][2] + z[2][1] + z[2][2]) / 4
    assert found == pytest.approx([z[0][0], z[1][1], z[2][2], (z[1][0] + z[1][1]) / 2, middle], rel=1e-4)
    assert browser.execute_script("return bent([[0, 0], [8, 16], [null, null]]).length") == 10
    traces = f"return pathTraces({CHART}, {CHART}.grids[0], true)"
    assert {trace["type"] for trace in browser.execute_script(traces)} == {"scatter3d"}
