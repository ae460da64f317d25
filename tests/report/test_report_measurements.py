"""Flatness is compared only between runs that were measured alike; the page warns about others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from fedflat.flatness.finished_run import AnalysisSettings, MeasurementName
from fedflat.report.comparison import MEASUREMENT_SETTINGS
from fedflat.report.html import make_report, page_contents
from fedflat.report.page_data import PageContents
from fedflat.report.page_tables import flatness_table
from fedflat.runs.read import read_stored_run

MakeRun = Callable[..., Path]
Analyse = Callable[..., None]
HEADINGS = {"hessian": "λ1", "lpf": "LPF", "discrepancy": "Δ_F", "local": "λ1 local"}


@pytest.fixture
def pair(make_run: MakeRun, analyse: Analyse) -> Callable[..., list[Path]]:
    """pair(...) writes runs a and b; b was analysed with the changed settings."""

    def make(**changed: Any) -> list[Path]:
        folders = [make_run(name, [0.5]) for name in "ab"]
        analyse(folders[0])
        analyse(folders[1], **changed)
        return folders

    return make


def read(folders: list[Path]) -> tuple[PageContents, dict[str, list[bool]]]:
    """Return the contents of the page, and for each column of the table of flatness which runs are bold."""
    runs = [read_stored_run(folder) for folder in folders]
    found = page_contents(runs)
    table = flatness_table(runs, found.settings, found.documents)
    return found, {heading: [bool(row[n].mark) for row in table.rows] for n, heading in enumerate(table.headings)}


@pytest.mark.parametrize(
    ("changed", "apart"),
    [
        ({"sigma": 0.5}, {"lpf"}),
        ({"rho": 1.0}, {"discrepancy"}),
        ({"on": "train"}, {"hessian", "lpf", "spectrum", "landscape", "path", "barrier", "barriers", "trajectory"}),
        ({"clients": [3]}, {"discrepancy", "local", "local-landscape"}),
        ({"solver": "power"}, {"hessian"}),
        ({"seed": 1}, {*MEASUREMENT_SETTINGS}),
        ({"device": "cuda", "run_seeds": [1], "what": ["lpf"], "batch_size": 3}, set()),
    ],
)
def test_only_runs_that_were_measured_alike_are_compared(
    changed: dict[str, Any], apart: set[str], pair: Callable
) -> None:
    found, bold = read(pair(**changed))
    assert {what: any(bold[heading]) for what, heading in HEADINGS.items()} == {
        what: what not in apart for what in HEADINGS
    }
    assert {warning.partition(" ")[0] for warning in found.warnings} == apart


def test_numbers_of_other_samples_are_not_compared(pair: Callable) -> None:
    folders = pair()
    path = folders[1] / "analysis" / "lpf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"samples": 40}))
    found, bold = read(folders)
    assert bold["LPF"] == [False, False]
    assert bold["λ1"] == [True, True]
    assert found.warnings == ["lpf was measured in different ways, which are not compared: samples 360 (a) and 40 (b)"]


def test_the_page_names_the_differing_settings_and_their_runs(
    pair: Callable, make_run: MakeRun, analyse, tmp_path: Path
) -> None:
    folders = [*pair(sigma=0.5, clients=[0, 3]), make_run("c", [0.5])]
    analyse(folders[2], sigma=0.5)
    differ, (a, b, c) = "was measured in different ways, which are not compared", (f"FedAvg ({name})" for name in "abc")
    warning = f"lpf {differ}: sigma 0.01 ({a}) and 0.5 ({b}, {c})"
    clients = f"local {differ}: clients – ({a}, {c}) and 0 3 ({b})"
    assert {warning, clients} <= {*make_report(folders, tmp_path / "page.html", 0.8)}
    assert warning in (tmp_path / "page.html").read_text()
    assert read(folders)[1]["LPF"] == [False, True, True]


def test_there_is_no_warning_about_runs_that_are_not_comparable_anyway(make_run: MakeRun, analyse: Analyse) -> None:
    folders = [make_run("a", [0.5]), make_run("b", [0.5], cohort=2)]
    analyse(folders[0])
    analyse(folders[1], sigma=0.5)
    assert read(folders)[0].warnings == []


def test_measurement_settings_are_settings_of_analyse() -> None:
    assert {key for keys in MEASUREMENT_SETTINGS.values() for key in keys} <= {*AnalysisSettings.__dataclass_fields__}
    assert {*MEASUREMENT_SETTINGS} == {*get_args(MeasurementName)}


RANDOM, EIGEN = "two random filter-normalised directions", "each model's two top eigenvectors"


@pytest.mark.parametrize(
    ("changed", "along"),
    [
        ({}, f"along {RANDOM}, shared by all."),
        ({"shared_by": "b"}, f"only within a group (a: {RANDOM}; b: {RANDOM})."),
        ({"run_seeds": [1]}, f"only within a group (a: {RANDOM}; b: {RANDOM})."),
        ({"directions": "eigen"}, f"only within a group (a: {RANDOM}; b: {EIGEN})."),
    ],
)
def test_captions_say_which_runs_share_directions(changed: dict[str, Any], along: str, pair: Callable) -> None:
    captions = {chart.key: chart.caption for chart in read(pair(**changed))[0].charts}
    assert along in captions["landscape"]
    assert along in captions["local-landscape"]
    shared = "directions" in changed or not changed  # a path has random directions whatever a landscape has
    assert ("not the same for all runs" in captions["path"]) == (not shared)


def test_captions_say_that_eigenvectors_differ_between_models(make_run: MakeRun, analyse: Analyse) -> None:
    folder = make_run("a", [0.5])
    analyse(folder, directions="eigen")
    captions = {chart.key: chart.caption for chart in read([folder])[0].charts}
    assert f"along {EIGEN}. All" in captions["landscape"]


def test_a_path_says_that_its_lines_share_no_unit_of_length(make_run: MakeRun, analyse: Analyse) -> None:
    folder = make_run("a", [0.5])
    analyse(folder)
    (path,) = (chart for chart in read([folder])[0].charts if chart.key == "path")
    assert path.x.label == "r, in lengths of the direction"
    assert "share no unit of length" in path.caption


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([3.2e-8], "3.20e-08"),
        ([3e-9, 5e-9], "4.00e-09 ± 1.41e-09"),
        ([0.00123], "0.00123"),
        ([0.000123], "0.000123"),
        ([-4.5e-5], "-4.50e-05"),
        ([0.0], "0.00"),
        ([12345.0, 12345.0], "12345 ± 0"),
    ],
)
def test_small_numbers_keep_their_digits(values: list[float], text: str, make_run: MakeRun) -> None:
    folder = make_run("a", [0.5])
    document = {"settings": {}, "seeds": {str(n): {"lpf": value} for n, value in enumerate(values)}}
    (folder / "analysis").mkdir()
    (folder / "analysis" / "lpf.json").write_text(json.dumps(document))
    runs = [read_stored_run(folder)]
    found = page_contents(runs)
    table = flatness_table(runs, found.settings, found.documents)
    assert table.rows[0][table.headings.index("LPF")].text == text
