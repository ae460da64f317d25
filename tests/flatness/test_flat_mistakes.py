"""fedflat analyse with damaged runs and with wrong options."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from finished_runs import QUICK, change_tensors, edit, quick, read

from fedflat.cli import main
from fedflat.errors import UserError
from fedflat.flatness.analyse import analyse
from fedflat.flatness.finished_run import AnalysisSettings


def damage_checkpoint(run: Path) -> None:
    path = run / "checkpoint" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE = {
    "torn checkpoint": (damage_checkpoint, "damaged"),
    "no checkpoint": (lambda run: shutil.rmtree(run / "checkpoint"), "missing or damaged"),
    "no config": (lambda run: (run / "config.yaml").unlink(), "not a run folder"),
    "garbage config": (lambda run: (run / "config.yaml").write_text("{"), "not valid YAML"),
    "list config": (lambda run: (run / "config.yaml").write_text("[1]"), "mapping"),
    "other model": (lambda run: edit(run, "model: mlp", "model: digits-cnn"), "does not belong"),
    "other seeds": (lambda run: edit(run, "- 3\n", "- 8\n"), "does not belong"),
    "own data": (lambda run: edit(run, "dataset: digits", "dataset: own:mine-0"), "own:mine-0"),
    "diverged": (lambda run: change_tensors(run, lambda n, t: t * torch.inf if "params" in n else t), "diverged"),
    "infinite loss": (lambda run: change_tensors(run, lambda n, t: t * 1e30 if "params" in n else t), "not finite"),
    "gone": (shutil.rmtree, "not a run folder"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_reported_and_the_rest_is_done(kind, runs, capsys):
    damage, reason = DAMAGE[kind]
    damage(runs[0])
    assert main(["analyse", *map(str, runs), *QUICK.split(), "--what", "lpf"]) == 0
    output = capsys.readouterr()
    line = next(line for line in output.out.splitlines() if line.startswith("skipped: "))
    assert str(runs[0]) in line
    assert reason in line
    assert not output.err
    assert read(runs[1], "lpf")["seeds"].keys() == {"3", "5"}
    assert main(["analyse", str(runs[0]), *QUICK.split(), "--what", "lpf"]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written_does_not_stop_the_others(runs):
    (runs[0] / "analysis").write_text("a file in the way")
    found = analyse(runs, quick("lpf"))
    assert str(found.problems[0]).startswith("avg: lpf: ")
    assert found.documents["dyn"].keys() == {"lpf"}


MISTAKES = [
    ("", "name at least one run"),
    ("avg --what hesian", "--what", "did you mean hessian?"),
    ("avg --grid 1", "--grid 1", "between 2 and"),
    ("avg --extent 0", "--extent 0", "between 0 (not included)"),
    ("avg --extent inf", "--extent inf"),
    ("avg --on tests", "--on tests", "test"),
    ("avg --samples 0", "--samples 0"),
    ("avg --sede 1", "--sede", "did you mean --seed?"),
    ("avg --run-seeds 4", "--run-seeds 4", "3 5"),
    ("avg --device tpu", "--device tpu", "cpu"),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[0] or "nothing")
def test_mistakes_are_one_line(case, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    words, *expected = case
    assert main(["analyse", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in expected)


def test_clients_beyond_the_last_are_refused(runs):
    problem = f"run {runs[0]} has clients 0 to 5"
    with pytest.raises(UserError, match=re.escape(f"nothing was measured; avg: local: clients=6: {problem}")):
        analyse(runs[:1], quick("local", clients=(6,)))
    problems = analyse(runs[:1], quick("local", "lpf", clients=(6,))).problems
    assert [str(problem) for problem in problems] == [f"avg: local: clients=6: {problem}"]


def test_problems_on_the_command_line_name_the_flag(runs, capsys):
    assert main(["analyse", str(runs[0]), *QUICK.split(), "--what", "local", "lpf", "--clients", "6"]) == 0
    assert f"skipped: avg: local: --clients 6: run {runs[0]} has clients 0 to 5\n" in capsys.readouterr().out


def test_settings_from_python_are_checked(runs):
    with pytest.raises(UserError, match=r"rho=0\.0: must be"):
        analyse(runs, AnalysisSettings(rho=0.0))
