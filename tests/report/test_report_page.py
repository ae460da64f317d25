"""The page shows exactly the runs that can be read, and names those it skipped."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from fedflat.cli import main
from fedflat.report.charts import Curves
from fedflat.report.comparison import training_settings
from fedflat.report.html import page_contents
from fedflat.report.page_tables import results_table
from fedflat.report.tables import print_results, result_cells
from fedflat.runs.read import read_stored_run, read_stored_runs

MakeRun = Callable[..., Path]
ROW = {"round": 1, "seed": 0, "accuracy": 0.5, "loss": 1.0}


def test_cells(make_run: MakeRun) -> None:
    result = read_stored_run(make_run("a", [0.5, 0.85, 0.95], lost=True)).result
    assert result
    assert result_cells("a", result, 0.8) == [
        "a",
        "90.00% ± 7.07%",
        "90.00% ± 7.07%",
        "2.5",
        "4,000",
        "4,000",
        "1.0",
        "diverged: seed 1",
    ]
    assert result_cells("a", result, 0.9)[3] == "–"


def test_an_error_has_no_default_target(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = read_stored_run(make_run("a", [0.95, 0.85, 0.5]))
    assert run.result
    history = [row | {"mse": row["accuracy"]} for row in run.result.history]
    errors = dataclasses.replace(run.result, history=history, metric="mse", higher_is_better=False)
    for target, heading, rounds in ((0.8, "", ""), (0.9, "rounds to 0.9", "1.5")):
        assert result_cells("a", errors, target)[3] == rounds
        table = results_table([dataclasses.replace(run, result=errors)], training_settings([run]), target)
        print_results([dataclasses.replace(run, result=errors)], target)
        printed = capsys.readouterr().out
        assert ("rounds to" in printed, any("rounds to" in text for text in table.headings)) == (bool(heading),) * 2
        assert heading in printed


def test_one_seed_has_no_standard_deviation(make_run: MakeRun) -> None:
    result = read_stored_run(make_run("a", [0.5, 0.85, 0.95])).result
    assert result
    assert result_cells("a", dataclasses.replace(result, seeds=[0]), 0.8)[1:3] == ["90.00%", "90.00%"]


def damage(folder: Path, kind: str) -> None:
    files = {
        "truncated result": ("result.json", '{"method": '),
        "foreign result": ("result.json", '{"accuracy": 1}'),
        "list for a result": ("result.json", "[]"),
        "broken config": ("config.yaml", "method: ["),
        "config of nothing": ("config.yaml", "3"),
        "cohort of words": ("config.yaml", "method: fedavg\ncohort: five\n"),
        "no metrics": ("metrics.jsonl", ""),
        "foreign metrics": ("metrics.jsonl", '{"step": 3}\n'),
        "metrics of words": ("metrics.jsonl", '{"round": 1, "seed": 0, "accuracy": "good", "loss": 1}\n'),
        "metrics of lists": ("metrics.jsonl", "[1]\n"),
        "probes of words": ("metrics.jsonl", json.dumps(ROW | {"probes": {"drift.mean": "far"}}) + "\n"),
        "probes in a list": ("metrics.jsonl", json.dumps(ROW | {"probes": [1]}) + "\n"),
        "binary metrics": ("metrics.jsonl", "\udcff\udcfe"),
    }
    name, text = files[kind]
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))


@pytest.mark.parametrize(
    "kind",
    [
        "truncated result",
        "foreign result",
        "list for a result",
        "broken config",
        "config of nothing",
        "cohort of words",
        "no metrics",
        "foreign metrics",
        "metrics of words",
        "metrics of lists",
        "probes of words",
        "probes in a list",
        "binary metrics",
    ],
)
def test_damaged_folders_are_left_out_and_named(kind: str, make_run: MakeRun, tmp_path: Path, capsys) -> None:
    good, bad, page = make_run("good", [0.5]), make_run("bad", [0.5]), tmp_path / "page.html"
    damage(bad, kind)
    assert main(["report", str(good), str(bad), str(tmp_path / "none"), "--out", str(page)]) == 0
    printed = capsys.readouterr().out
    assert f"skipped: {bad}" in printed
    assert f"skipped: {tmp_path / 'none'}: not a run folder" in printed
    text = page.read_text()
    assert f"skipped: {bad}" in text
    assert ">good</td>" in text
    assert ">bad</td>" not in text


def test_unfinished_runs_are_in_the_curves_only(make_run: MakeRun, tmp_path: Path, capsys) -> None:
    half = make_run("half", [0.5, 0.6], finished=False, rounds=60)
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "seed": 0, "acc')
    page, warning = tmp_path / "page.html", f"skipped in the results: {half}: unfinished (round 2 of 60)"
    assert main(["report", str(half), str(make_run("whole", [0.5])), "--out", str(page)]) == 0
    text = page.read_text()
    assert warning in text
    assert warning in capsys.readouterr().out
    assert ">half</td>" not in text
    assert ">whole</td>" in text
    assert '"name": "FedAvg, rounds = 60"' in text


def test_the_folder_of_a_comparison_stands_for_its_runs_and_names_are_distinct(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folders = [make_run(name, [0.5]) for name in ("one/fedavg", "one/fedsol", "two/fedavg")]
    runs, problems = read_stored_runs([tmp_path / "one", tmp_path / "two"])
    assert [run.path for run in runs] == folders
    assert [run.name for run in runs] == [str(folders[0]), "fedsol", str(folders[2])]
    assert not problems


@pytest.mark.parametrize("given", [".", "sub/.."])
def test_a_folder_given_by_dots_has_its_name(given: str, make_run: MakeRun, tmp_path: Path, monkeypatch) -> None:
    run, page = make_run("steady", [0.5]), tmp_path / "page.html"
    (run / "sub").mkdir()
    monkeypatch.chdir(run)
    assert main(["report", given, "--out", str(page)]) == 0
    assert "<title>FedAvg on digits</title>" in page.read_text()
    assert ">steady</td>" in page.read_text()


def test_names_cannot_break_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("<script>alert(1)<", [0.5])
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "<script>alert(1)<"), "--out", str(page)]) == 0
    assert "<script>alert" not in page.read_text()


def test_page_that_cannot_be_written(make_run: MakeRun, capsys) -> None:
    assert main(["report", str(make_run("a", [0.5])), "--out", "/proc/nowhere/page.html"]) == 2
    assert "--out /proc/nowhere/page.html: cannot be written" in capsys.readouterr().err


def test_out_must_not_be_a_folder_and_nothing_is_written_then(make_run: MakeRun, tmp_path: Path, capsys) -> None:
    run, out = make_run("a", [0.5]), tmp_path / "out"
    out.mkdir()
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(run), "--out", str(out), "--figures", str(tmp_path / "figures")]) == 2
    assert f"--out {out}: is a folder, must be a file such as {out / 'report.html'}" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_the_page_needs_no_network(make_run: MakeRun, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(make_run("a", [0.5])), "--out", str(page)]) == 0
    own = page.read_text().replace(get_plotlyjs(), "")
    assert len(own) < 140_000
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)", own)
    assert "http" not in own


def test_tables_without_figures_have_their_section(make_run: MakeRun, tmp_path: Path) -> None:
    run, page = make_run("fedavg", [0.5], probes={"cost.gradients": 2.0}), tmp_path / "page.html"
    (run / "analysis").mkdir()
    document = {"settings": {}, "seeds": {"0": {"lpf": 0.5, "lpf_error": 0.01}}}
    (run / "analysis" / "lpf.json").write_text(json.dumps(document))
    assert main(["report", str(run), "--out", str(page)]) == 0
    for section, table in (("probes", "once"), ("flatness", "flat")):
        assert f'<a href="#{section}">' in page.read_text()
        assert f'<table id="{table}"' in page.read_text()


def test_the_page_has_all_digits_of_its_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    run, page = make_run("a", [1 / 3, 2 / 3]), tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    data = page.read_text().partition('id="report-data">')[2]
    shown = {chart["key"]: chart for chart in json.JSONDecoder().raw_decode(data)[0]["charts"]}
    (accuracy,) = (chart for chart in page_contents([read_stored_run(run)]).charts if chart.key == "accuracy")
    assert isinstance(accuracy, Curves)
    assert shown["accuracy"]["lines"][0]["y"] == accuracy.lines[0].y


def test_the_number_that_a_paper_prints_is_beside_ours(make_run: MakeRun, tmp_path: Path, monkeypatch) -> None:
    run, page = make_run("a", [0.5], dataset="cifar10"), tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert ">paper<" not in page.read_text()
    monkeypatch.setattr("fedflat.reproduce.cells.printed_accuracy", lambda config: ("FedSOL Table 2", 43.4))
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert ">paper<" in page.read_text()
    assert "43.40% (FedSOL Table 2)" in page.read_text()
