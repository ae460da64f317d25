"""Sharpness against generalisation, the Pareto frontier, the matrix of wins, barriers, and charts of single clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.report.charts import Chart, ChartLine, Curves, Grids
from fedflat.report.comparison_charts import rank_correlation_text
from fedflat.report.html import page_contents
from fedflat.report.run_labels import label_runs
from fedflat.runs.read import read_stored_run

MakeRun = Callable[..., Path]


def charts(*folders: Path) -> dict[str, Chart]:
    return {chart.key: chart for chart in page_contents([read_stored_run(folder) for folder in folders]).charts}


def curves(found: dict[str, Chart], key: str) -> list[ChartLine]:
    chart = found[key]
    assert isinstance(chart, Curves)
    return chart.lines


def grids(found: dict[str, Chart], key: str) -> Grids:
    chart = found[key]
    assert isinstance(chart, Grids)
    return chart


def write_document(folder: Path, what: str, seeds: dict[str, Any], to: str = "", **settings: Any) -> None:
    (folder / "analysis").mkdir(exist_ok=True)
    document = {"settings": settings, "samples": 360, "seeds": seeds, **({"to": to} if to else {})}
    (folder / "analysis" / f"{what}.json").write_text(json.dumps(document))


def test_sharpness_against_accuracy_and_the_gap_has_one_point_per_seed(make_run: MakeRun) -> None:
    folders = [make_run("a", [0.6]), make_run("b", [0.8], method=FedSAM()), make_run("lost", [0.9], lost=True)]
    for n, folder in enumerate(folders):
        hessian = {"number": [1], "eigenvalue": [1.0]}
        write_document(folder, "hessian", {s: {"lambda1": 10.0 - n - int(s), "trace": 1.0, **hessian} for s in "01"})
        write_document(folder, "discrepancy", {"0": {"discrepancy": 0.1, "global_rise": 0.5, "model_accuracy": 0.95}})
    found = charts(*folders)
    lines = curves(found, "sharpness-lambda1-accuracy")
    assert [(line.name, line.x, line.y) for line in lines] == [
        ("a", [10.0, 9.0], [0.6, pytest.approx(0.5)]),
        ("b", [9.0, 8.0], [0.8, pytest.approx(0.7)]),
    ]
    assert [line.y for line in curves(found, "sharpness-lambda1-gap")] == [
        [pytest.approx(0.35)],
        [pytest.approx(0.15)],
    ]
    assert curves(found, "sharpness-worst-case-accuracy")[0].x == [0.5]
    assert "too few" in found["sharpness-lambda1-accuracy"].caption
    some = {"discrepancy": 0.1, "global_rise": 0.5, "model_accuracy": 0.99}  # of one client's training samples
    write_document(folders[0], "discrepancy", {"0": some}, clients=[3])
    local = {"client": [3], "lambda_local": [1.0], "lambda_global": [1.0], "model_accuracy": 0.7}
    write_document(folders[0], "local", {"0": local}, clients=[3])
    assert curves(charts(*folders), "sharpness-lambda1-gap")[0].y == [pytest.approx(0.1)]


def test_the_line_between_two_models_has_their_labels(make_run: MakeRun) -> None:
    folders = [make_run("a", [0.5]), make_run("b", [0.5], method=FedSAM())]
    write_document(folders[0], "barrier", {"0": {"gamma": [0.0, 1.0], "loss": [1.0, 2.0], "barrier": 0.0}}, to="b")
    runs = label_runs([read_stored_run(folder) for folder in folders])
    (chart,) = (chart for chart in page_contents(runs).charts if chart.key == "barrier")
    assert [line.name for line in curves({"barrier": chart}, "barrier")] == ["FedSAM → FedAvg"]


def test_rank_correlation() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.9, 0.8, 0.85, 0.6, 0.65, 0.5]
    text = rank_correlation_text([ChartLine("a", 0, x[:3], [*y[:3]]), ChartLine("b", 1, x[3:], [*y[3:]])])
    assert f"{stats.spearmanr(x, y).statistic:+.2f}" in text
    assert "95 % interval -0.99 to" in text
    assert "all values are equal" in rank_correlation_text([ChartLine("a", 0, x, [0.5] * 6)])


def test_the_frontier_has_the_runs_that_no_other_beats(make_run: MakeRun) -> None:
    speeds = {"slow": (0.9, 9.0), "quick": (0.7, 1.0), "beaten": (0.6, 5.0), "lost": (0.95, 0.1)}
    folders = [make_run(name, [a], seconds=s, lost=name == "lost") for name, (a, s) in speeds.items()]
    frontier, *points = curves(charts(*folders), "pareto-seconds")
    assert (frontier.run, frontier.x, frontier.y) == (-1, [1.0, 9.0], [pytest.approx(0.65), pytest.approx(0.85)])
    assert [point.name for point in points] == ["slow", "quick", "beaten"]


def test_wins_count_settings(make_run: MakeRun) -> None:
    folders = [make_run(f"avg{n}", [0.5], alpha=alpha) for n, alpha in enumerate((0.1, 0.5, 1.0))]
    better = [(0.1, 0.6), (0.5, 0.7), (1.0, 0.5)]
    folders += [make_run(f"sol{n}", [a], alpha=alpha, method=FedSOL()) for n, (alpha, a) in enumerate(better)]
    folders += [make_run("sam", [0.9], alpha=0.1, method=FedSAM(), lost=True)]
    (grid,) = grids(charts(*folders), "wins").grids
    assert grid.x_names == grid.y_names == ["FedAvg", "FedSOL", "FedSAM"]
    assert grid.text == [["", "0–1–2", "1–0–0"], ["2–1–0", "", "1–0–0"], ["0–0–1", "0–0–1", ""]]
    assert grid.z[1] == [pytest.approx(2 / 3), None, 1.0]
    assert "wins" not in charts(folders[0], folders[4])


def test_barriers_between_all_pairs(make_run: MakeRun) -> None:
    folders = [make_run(name, [0.5]) for name in "abc"]
    write_document(
        folders[0], "barriers", {"0": {"to": ["b", "c"], "barrier": [1.0, 2.0]}, "1": {"to": ["b"], "barrier": [3.0]}}
    )
    write_document(folders[1], "barriers", {"0": {"to": ["c", "gone"], "barrier": [0.5, 9.0]}})
    (grid,) = grids(charts(*folders), "barriers").grids
    assert grid.z == [[None, 2.0, 2.0], [2.0, None, 0.5], [2.0, 0.5, None]]
    write_document(folders[1], "barriers", {"0": {"to": ["c"], "barrier": []}})
    assert "damaged" in page_contents([read_stored_run(folder) for folder in folders]).warnings[0]


def test_clients_from_worst_to_best_and_what_they_forget(make_run: MakeRun) -> None:
    lists = {"class-forgetting.client": [4.0, 7.0], "class-forgetting.forgotten": [0.1, 0.2, None, -0.4]}
    run = make_run("a", [0.5, 0.6], probes={"clients.accuracy": [0.5, 0.1, None, 0.3], "clients.worst": 0.1, **lists})
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"seed": 0' in line]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = charts(run)
    (line,) = curves(found, "client-accuracy")
    assert (line.x, line.y) == ([pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0], [0.1, 0.3, 0.5])
    (grid,) = grids(found, "class-forgetting").grids
    assert (grid.x, grid.z) == ([4.0, 7.0], [[0.1, None], [0.2, -0.4]])
    assert not {"probe-class-forgetting-client", "probe-class-forgetting-forgotten"} & {*found}
    assert "probe-clients-accuracy" in found
