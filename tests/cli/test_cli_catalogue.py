"""Help, methods, cite, toy and data: every option is explained with its default."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from fedflat.cli import COMMANDS, DATA, flag, main
from fedflat.methods import METHODS
from fedflat.runs.experiment import Setting


def printed(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(words.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0
    output = capsys.readouterr()
    assert not output.err
    return output.out


def test_usage_names_every_command(capsys) -> None:
    assert printed("--help", capsys) == printed("", capsys)
    assert all(re.search(rf"^  {name} ", printed("", capsys), re.M) for name in COMMANDS)
    assert all(re.search(rf"^  {name} ", printed("data", capsys), re.M) for name in DATA)
    assert printed("--version", capsys).startswith("fedflat ")


@pytest.mark.parametrize("command", [*COMMANDS, *(f"data {name}" for name in DATA)])
def test_every_command_has_help(command: str, capsys) -> None:
    assert f"usage: fedflat {command}" in printed(f"{command} --help", capsys)


def test_help_fills_its_lines_and_leaves_out_defaults_that_say_nothing(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.strip("│ ") for line in printed("run fedlesam --help", capsys).splitlines()]
    (about_data,) = (line for line in lines if line.startswith("--dataset TEXT"))
    assert "table:FILE (CSV or parquet), text:PATH" in about_data, "lines are not broken where the source's are"
    assert not any(words in line for line in lines for words in ("default: )", "default: '')"))
    kinds = {line.split()[0]: line for line in lines if line.startswith("--")}
    assert kinds["--init"].endswith("every seed starts there.")
    assert kinds["--task"].startswith("--task TEXT")
    assert any("--base {none,scaffold,feddyn}" in line for line in lines)
    assert "(FedLESAM-D). (default: none)" in " ".join(lines)


def test_groups_of_commands_say_what_they_are_for(capsys) -> None:
    assert "Prepare, list and show data sets." in printed("data --help", capsys)
    assert "Flower" in printed("flower", capsys).splitlines()[2]


@pytest.mark.parametrize("name", METHODS)
def test_help_explains_every_option(name: str, capsys) -> None:
    text = re.sub(r"[│\s]+", " ", printed(f"run {name} --help", capsys))
    own = [f.name for f in dataclasses.fields(METHODS[name]) if f.name != "inner"]
    for option in [*own, *(f.name for f in dataclasses.fields(Setting)), "config", "out", "resume"]:
        found = re.search(rf"(--no-{flag(option)[2:]}|{flag(option)}) .*?( --|╰)", text.replace("_", "-"))
        assert found, option
        assert len(found.group()) > len(option) + 25, f"{option} is not explained"


def test_help_says_where_results_go(capsys) -> None:
    for words, folder in (("run fedavg", "runs/METHOD-DATE-TIME"), ("compare", "runs/compare-DATE-TIME")):
        assert folder in re.sub(r"[│\s]+", " ", printed(f"{words} --help", capsys))


def test_methods_as_json(capsys) -> None:
    rows = {row["name"]: row for row in json.loads(printed("methods --json", capsys))}
    assert rows.keys() == METHODS.keys()
    assert rows["fedsol"]["hyperparameters"]["rho"] == 2.0
    sent = {name: (row["models_down"], row["models_up"], row["client_keeps_models"]) for name, row in rows.items()}
    assert (sent["fedavg"], sent["fedgf"], sent["fedgloss"]) == ((1, 1, 0), (2, 1, 0), (1, 1, 1))


def test_methods_as_table(capsys) -> None:
    table = printed("methods", capsys)
    assert all(name in table for name in METHODS)
    assert "rho=2" in table


def test_cite_what_is_wrapped(capsys) -> None:
    both = printed("cite fedavgm fedsol", capsys)
    assert both.count("@") == 2
    assert printed("cite fedavgm+fedsol", capsys) == printed("cite fedavgm:beta=0.5+fedsol:rho=2", capsys) == both


def test_cite(capsys) -> None:
    text = printed("cite fedsol fedgloss fedsol", capsys)
    assert text.count("@inproceedings{") == 2
    assert "{FedSOL}" in text
    assert all(printed(f"cite {name}", capsys).startswith("@") for name in METHODS)


def test_toy(tmp_path: Path, capsys) -> None:
    assert "FedSOL" in printed(f"toy --out {tmp_path / 'toy.png'}", capsys)
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_data(tmp_path: Path, capsys) -> None:
    assert "digits" in printed(f"data list --cache {tmp_path}", capsys)
    picture = tmp_path / "parts.png"
    shown = printed(f"data show digits --clients 5 --alpha 0.1 --out {picture}", capsys)
    assert str(picture) in shown.replace("\n", "")
    assert "digits, dirichlet α = 0.1, 5 clients" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
