"""One label, one order and one look for a run, in the terminal, on the page and in figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.methods.compression import Compressed
from fedflat.methods.fedgf import FedGF
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.wrappers import ServerMomentum
from fedflat.progress import shorten_middle
from fedflat.report.charts import COLOURS, DARK_COLOURS, ChartLine, thin_line
from fedflat.report.run_labels import label_runs, method_name, natural_key, run_labels
from fedflat.report.tables import print_results
from fedflat.runs.read import read_stored_run, read_stored_runs

MakeRun = Callable[..., Path]


def names(*folders: Path, **options: object) -> list[str]:
    return [run.name for run in label_runs([read_stored_run(folder) for folder in folders], **options)]  # type: ignore[arg-type]


def test_labels_have_what_is_not_the_default_or_differs(make_run: MakeRun) -> None:
    methods = [FedSOL(rho=2.0, perturb="all"), FedSOL(rho=0.5), FedSAM(), ServerMomentum(FedSAM(), beta=0.5), FedGF()]
    runs = [read_stored_run(make_run(str(n), [0.5], method=method)) for n, method in enumerate(methods)]
    expected = ["FedSOL, ρ = 2, all", "FedSOL, ρ = 0.5, head", "FedSAM", "FedAvgM, β = 0.5 + FedSAM", "FedGF"]
    assert run_labels(runs) == expected


def test_fedavg_inside_a_wrapper_is_named_only_where_it_is_not_understood(make_run: MakeRun) -> None:
    methods = [Compressed(bits=4), Compressed(FedSAM()), ServerMomentum()]
    runs = [read_stored_run(make_run(str(n), [0.5], method=method)) for n, method in enumerate(methods)]
    assert run_labels(runs) == ["Compressed, bits = 4 + FedAvg", "Compressed + FedSAM", "FedAvgM"]


def test_a_method_of_your_own_has_the_name_of_its_class() -> None:
    assert method_name("/home/me/my_method.py:FedSign") == "FedSign"
    assert method_name("fedsol") == "FedSOL"


def test_runs_of_one_method_are_told_apart_by_settings_then_folders(make_run: MakeRun) -> None:
    folders = [make_run("x", [0.5], lr=0.1), make_run("y", [0.5], lr=0.2), make_run("z", [0.5], lr=0.2)]
    assert names(*folders) == ["FedAvg, lr = 0.1", "FedAvg, lr = 0.2 (y)", "FedAvg, lr = 0.2 (z)"]


def test_order_does_not_depend_on_how_runs_are_given(make_run: MakeRun) -> None:
    methods = [FedSOL(rho=10.0), FedSOL(rho=9.0), FedSAM()]
    folders = [make_run(str(n), [0.5], method=method) for n, method in enumerate(methods)] + [make_run("a", [0.5])]
    expected = ["FedAvg", "FedSAM", "FedSOL, ρ = 9", "FedSOL, ρ = 10"]
    assert names(*folders) == names(*folders[::-1]) == expected
    assert names(*folders, order=["FedSOL, ρ = 10", "2"]) == ["FedSOL, ρ = 10", "FedSAM", "FedAvg", "FedSOL, ρ = 9"]
    assert natural_key("lr = 0.5") < natural_key("lr = 10") < natural_key("lr = 1e3")


def test_own_labels(make_run: MakeRun, tmp_path: Path, capsys) -> None:
    folders, page = [make_run("a=1", [0.5]), make_run("b", [0.6], method=FedSAM())], tmp_path / "page.html"
    words = ["report", *map(str, folders), "--out", str(page)]
    assert main([*words, "--label", "a=1=ours, ρ = 2", f"{folders[1]}=SAM", "--order", "b"]) == 0
    runs = json.JSONDecoder().raw_decode(page.read_text().partition('id="report-data">')[2])[0]["runs"]
    assert [run["label"] for run in runs] == ["SAM", "ours, ρ = 2"]
    for wrong in (["--label", "c=x"], ["--label", "b="], ["--order", "nothing"]):
        assert main([*words, *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
    with pytest.raises(UserError, match="is not a run"):
        label_runs([read_stored_run(folders[1])], {"a": "x"})


def test_narrow_terminals_keep_names_and_leave_columns_out(make_run: MakeRun, monkeypatch, capsys) -> None:
    folders = [make_run(str(n), [0.5, 0.6], method=FedGF(rho=0.05, threshold=0.7 + n / 10)) for n in range(2)]
    runs = label_runs(read_stored_runs(folders)[0])
    for width in (80, 200):
        monkeypatch.setattr(
            "fedflat.report.tables.Console", lambda width=width: Console(width=width, force_terminal=True)
        )
        print_results(runs)
        text = capsys.readouterr().out
        assert text.partition("\n")[0].count("┳") == (3 if width == 80 else 6)
        assert all(f"= {value}" in text for value in (0.7, 0.8))
        assert "…" not in text


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_bar_of_a_narrow_terminal_keeps_which_method_of_how_many() -> None:
    names = [shorten_middle(f"fedgf:rho=0.05,threshold={number} (3 of 5)", 80 // 3) for number in (0.7, 0.8)]
    assert all(name.endswith("(3 of 5)") and len(name) <= 26 for name in names)
    assert names[0] != names[1]


@pytest.mark.parametrize(("colours", "paper"), [(COLOURS, "#ffffff"), (DARK_COLOURS, "#14171b")])
def test_lines_have_contrast(colours: tuple[str, ...], paper: str) -> None:
    for colour in colours:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3


def test_thinned_lines_keep_their_extremes() -> None:
    y: list[float | None] = [0.5 + (n % 7) / 100 for n in range(10_000)]
    y[4321], y[77] = 9.0, None
    line = thin_line(ChartLine("a", 0, [*range(10_000)], y, seeds={"0": y}), 1000)
    assert len(line.x) <= 1100
    assert (line.x[0], line.x[-1], max(v for v in line.y if v is not None)) == (0, 9999, 9.0)
    assert line.seeds["0"] == line.y == [y[int(n)] for n in line.x]
