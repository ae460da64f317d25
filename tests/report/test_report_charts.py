"""The charts hold the numbers of the run folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedflat.data.load import load_dataset
from fedflat.data.partition import class_counts
from fedflat.report.charts import COLOURS, DASHES, SYMBOLS, Chart, ChartLine, Curves, Grids
from fedflat.report.comparison import training_settings
from fedflat.report.html import page_contents
from fedflat.report.page_tables import flatness_table, results_table
from fedflat.runs.build import partition_clients
from fedflat.runs.experiment import Experiment
from fedflat.runs.read import read_stored_run

MakeRun = Callable[..., Path]
Analyse = Callable[..., None]


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


def test_curves_are_means_with_bands_of_one_standard_deviation(make_run: MakeRun) -> None:
    (line,) = curves(charts(make_run("a", [0.3, 1.0])), "accuracy")
    spread = 0.1 / 2**0.5
    assert line.x == [1, 2]
    assert line.y == pytest.approx([0.25, 0.95])
    assert line.low == pytest.approx([0.25 - spread, 0.95 - spread])
    assert line.high == pytest.approx([0.25 + spread, 1.0])


def test_one_seed_has_no_band(make_run: MakeRun) -> None:
    folder = make_run("a", [0.3, 1.0])
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(rows[::2]) + "\n")
    (line,) = curves(charts(folder), "loss")
    assert line.y == pytest.approx([0.7, 0.0])
    assert line.low == []


def test_a_loss_ends_where_one_seed_has_diverged_and_the_accuracy_goes_on(make_run: MakeRun) -> None:
    folder = make_run("a", [0.1, 0.5, 0.9, 0.9])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[5]["loss"] = None  # of round 3 and seed 1
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = charts(folder)
    assert curves(found, "loss")[0].x == [1, 2]
    assert curves(found, "loss")[0].y == pytest.approx([0.9, 0.5])
    assert curves(found, "accuracy")[0].x == [1, 2, 3, 4]
    assert "ends where the loss of any seed is not finite" in found["loss"].caption


def test_communication_counts_everything_sent(make_run: MakeRun) -> None:
    found = charts(make_run("a", [0.3, 0.5], cohort=3), make_run("half", [0.3], finished=False))
    (line,) = curves(found, "communication")
    assert line.x == [3 * 8000, 2 * 3 * 8000]
    assert line.y == pytest.approx([0.25, 0.45])


def test_clients_and_classes_show_the_partition_of_the_run(make_run: MakeRun) -> None:
    setting = {"clients": 7, "alpha": 0.3, "partition_seed": 3}
    found = charts(*(make_run(name, [0.5], **setting) for name in "ab"), make_run("c", [0.5], partition="iid"))
    first, second = grids(found, "clients").grids
    data = load_dataset("digits")
    held = class_counts(data.y.numpy(), partition_clients(Experiment(**setting), data), 10)
    assert [[n or 0 for n in row] for row in first.z] == held.T.tolist()
    assert len(second.x) == 20


def test_data_sets_that_are_not_on_this_machine_are_named(make_run: MakeRun) -> None:
    folder = make_run("a", [0.5])
    config = (folder / "config.yaml").read_text().replace("dataset: digits", "dataset: own:mine-0123abcd")
    (folder / "config.yaml").write_text(config)
    found = page_contents([read_stored_run(folder)])
    assert "clients" not in {chart.key for chart in found.charts}
    why = 'dataset="own:mine-0123abcd": was given in Python and is not in the run\'s folder'
    assert found.warnings[0] == f"a: clients and classes are not shown ({why})"


def test_probes(make_run: MakeRun) -> None:
    probes = {"drift.local_local": 2.0, "drift.global_local": 1.0, "fedgf.c": 0.5, "fedgf.distance": None}
    found = charts(make_run("a", [0.5, 0.6], probes=probes | {"classes.accuracy": [0.0, None]}), make_run("b", [0.1]))
    drift = curves(found, "probe-drift")
    assert [(line.name, line.dash) for line in drift] == [("a, to each other", 0), ("a, to the global model", 4)]
    assert [line.y for line in drift] == [[2.5, 2.5], [1.5, 1.5]]
    assert curves(found, "probe-fedgf-c")[0].y == [1.0, 1.0]
    assert "probe-fedgf-distance" not in found
    heat = grids(found, "probe-classes-accuracy")
    assert [(grid.name, grid.x, grid.z) for grid in heat.grids] == [("a", [1, 2], [[0.5, 0.5], [None, None]])]
    assert "FedSOL" in found["probe-drift"].caption


def test_probes_cannot_name_files_elsewhere(make_run: MakeRun) -> None:
    found = charts(make_run("a", [0.5, 0.6], probes={"x.../../y": 1.0}))
    assert "probe-x-y" in found


def test_runs_without_probes_and_analyses_have_no_such_figures(make_run: MakeRun) -> None:
    assert [*charts(make_run("a", [0.5]))] == ["accuracy", "loss", "communication", "clients"]


def test_analyses(make_run: MakeRun, analyse: Analyse) -> None:
    folders = [make_run("a", [0.5]), make_run("b", [0.5]), make_run("c", [0.5])]
    for folder, height in zip(folders, (1.0, 2.0, 50.0), strict=True):
        analyse(folder, height)
    found = charts(*folders)
    surfaces = grids(found, "landscape")
    assert (surfaces.low, surfaces.high) == (0.0, 4.0)  # the median of 2, 4 and 100
    assert [grid.name for grid in surfaces.grids] == ["a, seed 0", "b, seed 0", "c, seed 0"]
    views = grids(found, "local-landscape")
    assert [grid.name for grid in views.grids][:2] == ["a, seed 0, client 3, own data", "a, seed 0, client 3, all data"]
    assert (views.low, views.high) == (0.0, 6.0)  # the median of three times 2 and three times 10
    assert curves(found, "spectrum")[0].y == [None, 1.0, 0.001]
    assert curves(found, "hessian")[1].y == [6.0, 1.0]
    assert (curves(found, "local")[0].x, curves(found, "local")[0].y) == ([0.5, 0.5], [2.0, 2.0])
    assert curves(found, "barrier")[0].y == [1.0, 3.0, 1.0]
    assert [line.dash for line in curves(found, "path")][:2] == [0, 4]


def test_no_two_lines_of_a_figure_look_alike(make_run: MakeRun, analyse: Analyse) -> None:
    probes = {"drift.local_local": 2.0, "drift.global_local": 1.0, "fedgf.c": 0.5}
    folders = [make_run(f"{n:02}", [0.5, 0.6], probes=probes) for n in range(15)]
    for folder in folders:
        analyse(folder)
    found = [chart for chart in charts(*folders).values() if isinstance(chart, Curves)]
    assert len(found) > 10
    for chart in found:
        looks = [(line.run % len(COLOURS), line.dash % len(SYMBOLS if line.marks else DASHES)) for line in chart.lines]
        assert len(set(looks)) == len(looks) >= 15, chart.key
    assert len(set(DASHES)) == len(DASHES)


@pytest.mark.parametrize(
    "damage", ['{"seeds": ', "[]", '{"seeds": {}}', '{"settings": {}, "seeds": {"0": {"x": "far"}}}']
)
def test_a_damaged_analysis_is_named_and_the_rest_is_shown(damage: str, make_run: MakeRun, analyse: Analyse) -> None:
    folder = make_run("a", [0.5])
    analyse(folder)
    (folder / "analysis" / "landscape.json").write_text(damage)
    found = page_contents([read_stored_run(folder)])
    assert str(folder / "analysis" / "landscape.json") in found.warnings[0]
    assert "landscape" not in found.documents[0]
    assert "spectrum" in {chart.key for chart in found.charts}


@pytest.mark.parametrize("what", ["landscape", "local-landscape"])
def test_landscapes_of_unequal_rows_are_damaged(what: str, make_run: MakeRun, analyse: Analyse) -> None:
    folder = make_run("a", [0.5])
    analyse(folder)
    path = folder / "analysis" / f"{what}.json"
    document = json.loads(path.read_text())
    seed = document["seeds"]["0"]
    (seed["loss"] if what == "landscape" else seed["surfaces"][0]["all"])[1].pop()
    path.write_text(json.dumps(document))
    assert "unequal length" in page_contents([read_stored_run(folder)]).warnings[0]


def test_the_best_are_bold(make_run: MakeRun, analyse: Analyse) -> None:
    folders = [make_run("a", [0.5, 0.95]), make_run("b", [0.9, 0.9]), make_run("c", [0.1, 0.2])]
    for folder, height in zip(folders, (2.0, 1.0, 3.0), strict=True):
        analyse(folder, height)
    runs = [read_stored_run(folder) for folder in folders]
    settings = training_settings(runs)
    table = results_table(runs, settings, 0.8)
    bold = {(row[0].text, table.headings[n]) for row in table.rows for n, cell in enumerate(row) if cell.mark == "best"}
    assert bold == {("a", "accuracy"), ("a", "last 10 %"), ("b", "rounds to 80%")}
    flat = flatness_table(runs, settings, page_contents(runs).documents)
    column = flat.headings.index("λ1")
    assert [(row[column].text, row[column].mark == "best") for row in flat.rows] == [
        ("6.00 ± 0.00", False),
        ("3.00 ± 0.00", True),
        ("9.00 ± 0.00", False),
    ]
    assert "λ1 global" not in flat.headings
