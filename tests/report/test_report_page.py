"""The page is about exactly the runs that can be read, and says what it left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.report.figures import learning_curves
from fedflat.report.runs import read_run, read_runs
from fedflat.report.table import cells

MakeRun = Callable[..., Path]


def test_curves_are_means_with_bands_of_one_standard_deviation(make_run: MakeRun) -> None:
    figure = learning_curves([read_run(make_run("a", [0.3, 1.0]))], "accuracy", "accuracy")
    band, line = figure["data"]
    assert line["x"] == [1, 2]
    assert line["y"] == pytest.approx([0.25, 0.95])
    spread = 0.1 / 2**0.5
    assert band["x"] == [1, 2, 2, 1]
    assert band["y"] == pytest.approx([0.25 + spread, 1.0, 0.95 - spread, 0.25 - spread])


def test_cells(make_run: MakeRun) -> None:
    result = read_run(make_run("a", [0.5, 0.85, 0.95], lost=True)).result
    assert result
    assert cells("a", result, 0.8) == [
        "a",
        "90.00% ± 7.07%",
        "90.00% ± 7.07%",
        "2.5",
        "4,000",
        "4,000",
        "1.0",
        "diverged: seed 1",
    ]
    assert cells("a", result, 0.9)[3] == "–"


def damage(folder: Path, kind: str) -> None:
    files = {
        "truncated result": ("result.json", '{"method": '),
        "foreign result": ("result.json", '{"accuracy": 1}'),
        "list for a result": ("result.json", "[]"),
        "broken config": ("config.yaml", "method: ["),
        "config of nothing": ("config.yaml", "3"),
        "no metrics": ("metrics.jsonl", ""),
        "foreign metrics": ("metrics.jsonl", '{"step": 3}\n'),
        "metrics of words": ("metrics.jsonl", '{"round": 1, "seed": 0, "accuracy": "good", "loss": 1}\n'),
        "metrics of lists": ("metrics.jsonl", "[1]\n"),
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
        "no metrics",
        "foreign metrics",
        "metrics of words",
        "metrics of lists",
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
    assert f"Skipped: {bad}" in text
    assert "<td>good</td>" in text
    assert "<td>bad</td>" not in text


def test_unfinished_runs_are_in_the_figures_only(make_run: MakeRun, tmp_path: Path) -> None:
    half = make_run("half", [0.5, 0.6], finished=False)
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "seed": 0, "acc')
    page = tmp_path / "page.html"
    assert main(["report", str(half), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Unfinished, in the figures only: half" in text
    assert "<td>half</td>" not in text
    assert '"name": "half"' in text


def test_a_comparison_stands_for_its_runs_and_names_stay_apart(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(name, [0.5]) for name in ("one/fedavg", "one/fedsol", "two/fedavg")]
    runs, problems = read_runs([tmp_path / "one", tmp_path / "two"])
    assert [run.path for run in runs] == folders
    assert [run.name for run in runs] == [str(folders[0]), "fedsol", str(folders[2])]
    assert not problems


def test_names_cannot_break_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("<script>alert(1)<", [0.5])
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "<script>alert(1)<"), "--out", str(page)]) == 0
    assert "<script>alert" not in page.read_text()


def test_page_that_cannot_be_written(make_run: MakeRun, capsys) -> None:
    assert main(["report", str(make_run("a", [0.5])), "--out", "/proc/nowhere/page.html"]) == 2
    assert "--out /proc/nowhere/page.html: cannot be written" in capsys.readouterr().err
