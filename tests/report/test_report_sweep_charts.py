"""The sweep as figures for a paper, and the differences between configurations as CSV and LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedflat.cli import main
from fedflat.methods.fedsol import FedSOL
from fedflat.report.comparison import training_settings
from fedflat.report.run_labels import label_runs
from fedflat.report.sweep_charts import differing_values, latex_table, sweep_charts, write_differences
from fedflat.runs.read import read_stored_runs

MakeRun = Callable[..., Path]


@pytest.fixture
def sweep(make_run: MakeRun) -> Path:
    """Five runs over ρ and lr, of which one diverged and one pair is missing."""
    for rho, lr, accuracy in ((0.5, 0.01, 0.5), (0.5, 0.1, 0.6), (2.0, 0.01, 0.7), (2.0, 1.0, 0.8)):
        make_run(f"sweep/{rho}-{lr}", [0.2, accuracy], method=FedSOL(rho=rho), lr=lr)
    return make_run("sweep/lost", [0.2, 0.9], lost=True, method=FedSOL(rho=2.0), lr=0.1).parent


def charts_of(folder: Path) -> dict[str, Any]:
    runs = label_runs(read_stored_runs([folder])[0], None, ())
    return {chart.key: chart for chart in sweep_charts(runs, training_settings(runs))}


def test_the_metric_against_each_setting_with_a_line_for_each_value_of_another(sweep: Path) -> None:
    charts = charts_of(sweep)
    assert [*charts] == ["sweep-rho", "sweep-lr", "sweep"]
    lines = charts["sweep-lr"].lines
    assert [(line.name, line.x) for line in lines] == [("rho = 0.5", [0.01, 0.1]), ("rho = 2", [0.01, 1.0])]
    assert lines[1].y == pytest.approx([0.65, 0.75]), "the mean over seeds, without the run that diverged"
    assert lines[1].high[0] - lines[1].y[0] == pytest.approx(0.1 / 2**0.5)
    assert (charts["sweep-lr"].x.log, charts["sweep-rho"].x.log) == (True, False)
    assert charts["sweep-lr"].y.form == "percent"


def test_a_heat_map_over_two_settings(sweep: Path) -> None:
    (grid,) = charts_of(sweep)["sweep"].grids
    assert (grid.x_names, grid.y_names) == (["0.5", "2"], ["0.01", "0.1", "1"])
    assert grid.text == [["45.0", "65.0"], ["55.0", ""], ["", "75.0"]]
    assert grid.z[1] == [pytest.approx(0.55), None]


def test_one_setting_has_one_line_and_no_heat_map(make_run: MakeRun, tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        make_run(f"sweep/{lr}", [0.5], lr=lr)
    (chart,) = charts_of(tmp_path / "sweep").values()
    assert [(line.name, line.x) for line in chart.lines] == [("all runs", [0.1, 0.2])]


def test_differences_are_written_as_csv_and_latex(sweep: Path, tmp_path: Path) -> None:
    runs = label_runs(read_stored_runs([sweep])[0], {"lost": "100 %, ρ_0 & co"}, ())
    settings = training_settings(runs)
    write_differences(runs, settings, tmp_path / "made")
    rows = list(csv.reader((tmp_path / "made" / "differences.csv").open()))
    assert rows[0] == ["setting", *(run.name for run in runs)]
    assert [row[0] for row in rows[1:]] == [*differing_values(runs, settings)] == ["rho", "lr"]
    assert dict(zip(rows[0], rows[2], strict=True))["100 %, ρ_0 & co"] == "0.1"
    text = (tmp_path / "made" / "differences.tex").read_text()
    assert r"100 \%, $\rho$\_0 \& co" in text
    assert text.count(r" \\") == 3
    assert latex_table([["a", "b"], ["c", "1"]]).splitlines()[0] == r"\begin{tabular}{lr}"


def test_the_command_writes_them(sweep: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    assert main(["report", str(sweep), "--out", str(tmp_path / "page.html"), "--figures", str(figures)]) == 0
    assert {"sweep.pdf", "sweep-lr.pdf", "sweep-rho.png", "differences.csv", "differences.tex"} <= {
        path.name for path in figures.iterdir()
    }
