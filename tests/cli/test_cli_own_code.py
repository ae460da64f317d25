"""FILE.py:NAME as method, model and data set: runs, what their folders remember, and mistakes in such files."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import fedflat as ff
from fedflat.cli import main
from fedflat.data.load import load_dataset
from fedflat.methods import METHODS
from fedflat.own_code import load_own_code
from fedflat.runs.callbacks import CallbackError, TrainingView
from fedflat.runs.config import config_differences, dump_experiment, load_experiment, same_run
from fedflat.runs.sweep import option_type

PAGE = (Path(__file__).parents[2] / "docs" / "own-code.md").read_text(encoding="utf-8")
SMALL = shlex.split("--rounds 2 --clients 4 --cohort 2 --partition iid --local-epochs 1")
OWN = shlex.split("--model my_model.py:Net --dataset my_data.py:load")
HEAD = """
from dataclasses import dataclass
from typing import NamedTuple
import torch
import fedflat as ff

class State(NamedTuple):
    steps: torch.Tensor

@dataclass(frozen=True)
class Bad(ff.Method):
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        (tmp_path / block.split()[1]).write_text(block)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def words(command: str) -> list[str]:
    return [*shlex.split(command), *SMALL]


def test_the_page_works(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, compare, help = re.findall(r"^fedflat (\w+ .*)", PAGE, re.M)[:3]
    assert main([*words(run), "--out", "one"]) == 0
    assert main([*words(compare), *OWN, "--out", "two"]) == 0
    assert "│ FedNGD" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(shlex.split(help))
    assert re.search(r"--length FLOAT +Length of a step, before", capsys.readouterr().out)
    config = yaml.safe_load((files / "one" / "config.yaml").read_text())
    assert config["method"] == {"name": f"{files}/my_method.py:FedNGD", "length": 0.5}
    assert [Path(path).name for path in config["code"]] == ["my_method.py", "my_data.py", "my_model.py"]
    assert {path.name for path in (files / "two").iterdir()} > {"fedavg", "my_method.py-FedNGD-length=0.5"}
    assert main(["analyse", "one", "--what", "lpf", "--samples", "20"]) == 0
    assert main(["personalise", "one", "--epochs", "0", "1", "--no-alone"]) == 0
    assert isinstance(ff.load_model("one"), torch.nn.Sequential)
    assert not capsys.readouterr().err
    assert main([*words("run my_method.py:FedNGD --length -1"), *OWN]) == 2
    assert "--length -1.0: must be more than 0" in capsys.readouterr().err


def test_a_changed_file_is_refused_on_resume_and_told_later(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Breaks:
        def on_round(self, view: TrainingView) -> None:
            if view.round == 1:
                raise RuntimeError

    assert main([*words("run my_method.py:FedNGD"), *OWN, "--out", "whole"]) == 0
    experiment = load_experiment(files / "whole" / "config.yaml")
    with pytest.raises(CallbackError):
        ff.run(experiment, out="torn", callbacks=[Breaks()])
    source = (files / "my_method.py").read_text()
    (files / "my_method.py").write_text(source + "# changed\n")
    capsys.readouterr()
    assert main(shlex.split("run --config torn/config.yaml --out torn --resume")) == 2
    problem = r"my_method\.py has changed \(SHA-256 \w{12}…, now \w{12}…\): only the old file continues it"
    assert re.search(problem, capsys.readouterr().err)
    assert ff.load_model("whole")
    assert "run whole: my_method.py has changed (SHA-256" in capsys.readouterr().err
    (files / "my_method.py").write_text(source)
    assert main(shlex.split("run --config torn/config.yaml --out torn --resume")) == 0
    metrics = [re.sub('"seconds.*', "", (files / name / "metrics.jsonl").read_text()) for name in ("torn", "whole")]
    assert metrics[0] == metrics[1]


def test_a_project_may_be_moved(files: Path) -> None:
    here = dump_experiment(ff.Experiment(model="my_model.py:Net", dataset="my_data.py:load"))
    moved = here.replace(str(files), "/elsewhere")
    assert same_run(here, moved)
    changed = re.sub(r"(my_model.py: ')?\b[0-9a-f]{64}", lambda found: (found[1] or "") + "0" * 64, here)
    assert not same_run(here, changed)
    assert any(text.startswith("my_model.py has changed") for text in config_differences(here, changed))
    assert same_run(here, changed, ("engine", "code"))


STEP = "def step(self, task, w, batch, msg, client):\n"
REPLY = "def reply(self, w, msg, client, local):\n"
UPDATE = "def update(self, server, cohort):\n"
CLIENT = "def init_client(self, params):\n"
IF_TENSOR = STEP + "  if w.norm() > 1:\n   w = w / 2\n  return task.grad(w, batch), client"
BODIES = [  # what a method does, and the line that it gets
    (IF_TENSOR, r"line 13 of bad.py \(if w.norm\(\) > 1:\): .* `if` and `while` cannot look at a tensor"),
    (STEP + "  return w / w.norm().item(), client", r"line 13 .*\.item\(\)"),
    (
        STEP + "  return task.grad(w, batch)",
        r"step, line 12 of bad.py: must return two things, .*, not float32 \[\d+\]",
    ),
    (STEP + "  return w[:3], client", r"the direction must be .* like w, not float32 \[3\]"),
    (CLIENT + "  return State(0.0)", r"init_client, line 12 .* not State\(steps: float\)"),
    (
        CLIENT + "  return State(params)\n " + REPLY + "  return ff.Reply(w), ()",
        r"reply, line 14 .*'steps' was .* not there",
    ),
    (UPDATE + "  return ff.Server(server.params.double())", r"must keep .*: 'params' was float32 .* is float64"),
    (UPDATE + "  server.params.add_(1)\n  return server", r"update, line 12 .* in place"),
    (REPLY + "  self.last = w\n  return ff.Reply(w), client", r"line 13 .*on the method itself"),
    (STEP + "  return torch.randn(w.shape), client", r"line 13 .*random numbers of torch"),
    (
        STEP + "  return torch.from_numpy(task.grad(w, batch).numpy()), client",
        r"line 13 .*list or a numpy array; use torch",
    ),
    (STEP + "  g = task.grad(w, batch)\n  return g / g[g > 0].max(), client", r"line 14 .*no shape may depend"),
    (STEP + "  task.loss(w, batch).backward()\n  return w.grad, client", r"line 13 .*use task\.grad"),
    (STEP + "  print(f'{w.norm()}')\n  return w, client", r"line 13 .*look at it with --engine sequential"),
    (STEP + "  return client, w", r"the direction must be float32 .* like w, not \(\)"),
    ("def step(self, task, w, batch):\n  return w", r"step, line 12 .*it is given \(task, w, batch, msg, client\)"),
    (
        REPLY + "  return w - msg.params, client",
        r"update of fedflat.Method: AttributeError: .*'delta'; override it too",
    ),
    (STEP + "  return task.grad(w, batch) * (2 if batch.x.sum() > 0 else 1), client", r"line 13 .*`if` and `while`"),
    (
        "bookkeeping = ('steps',)\n " + REPLY + "  return State((w - msg.params).norm()), client",
        r"reply, line 13 .*'steps' is bookkeeping, so it must be a number that follows from `local`",
    ),
    ("def broadcast(self, server):\n  return server.parms", r"line 13 .*AttributeError: .* no attribute 'parms'"),
]


@pytest.mark.parametrize(("body", "problem"), BODIES, ids=range(len(BODIES)))
def test_mistakes_in_a_method_are_one_line(body: str, problem: str, files: Path, capsys) -> None:
    (files / "bad.py").write_text(f"{HEAD} {body}\n")
    assert main([*words("run bad.py:Bad"), *OWN, "--out", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"fedflat: method Bad: .*{problem}", line), line
    assert not (files / "run").exists()


def test_a_class_that_is_no_dataclass_keeps_nothing_on_itself(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = HEAD.replace("@dataclass(frozen=True)\n", "")
    (files / "bad.py").write_text(f"{head} {STEP}  self.last = w\n  return task.grad(w, batch), client\n")
    assert main([*words("run bad.py:Bad"), *OWN, "--out", "run"]) == 2
    assert "step, line 11 of bad.py: nothing may be kept on the method itself" in capsys.readouterr().err


def test_comparisons_and_sweeps_try_a_method_first(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "bad.py").write_text(f"{HEAD} rate: ff.Positive = 1.0\n {IF_TENSOR}\n")
    for command in ("compare fedavg bad.py:Bad", "sweep bad.py:Bad rate=1,2 --validation 0.1"):
        assert main([*words(command), *OWN, "--out", "two"]) == 2
        assert "line 14 of bad.py (if w.norm() > 1:)" in capsys.readouterr().err
    assert not list(files.glob("two/*/metrics.jsonl"))


def test_a_hyper_parameter_with_the_name_of_an_option_is_refused(files: Path, capsys) -> None:
    (files / "bad.py").write_text(f"{HEAD} alpha: ff.Positive = 1.0\n {STEP}  return self.alpha * w, client\n")
    for command in ("run bad.py:Bad", "sweep bad.py:Bad alpha=1,2 --validation 0.1"):
        assert main([*words(command), *OWN, "--out", "run"]) == 2
        assert "hyper-parameter alpha has the name of an option of every run" in capsys.readouterr().err
    with pytest.raises(ff.UserError, match="alpha: is an option of the run and of the method alike"):
        option_type(load_own_code(None, "bad.py:Bad")(), "alpha")


def test_a_misspelt_function_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "bad.py").write_text(f"{HEAD} {STEP.replace('step', 'steps')}  return w, client\n")
    assert main([*words("run fedavgm+bad.py:Bad"), *OWN, "--out", "run"]) == 0
    assert "method Bad: no engine calls its function steps (did you mean step?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run bad.py:Bad", "sweep bad.py:Bad lr=0.1,0.2 --validation 0.1"])
def test_an_error_in_a_later_round_is_one_line(command: str, files: Path, capsys) -> None:
    update = f"{UPDATE}  CALLS.append(1)\n  return server if len(CALLS) < 3 else 1 / 0"
    (files / "bad.py").write_text(f"{HEAD} {update}\nCALLS = []\n")
    assert main([*words(command), *OWN, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert "method Bad: line 14 of bad.py (return server if len(CALLS) < 3 else 1 / 0): ZeroDivisionError" in error


def test_an_exception_that_ends_python_is_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "bad.py").write_text(f"{HEAD} {UPDATE}  raise GeneratorExit\n")
    assert main(words("run bad.py:Bad --out run")) == 1
    assert "internal error (GeneratorExit: )" in capsys.readouterr().err


def test_mistakes_in_a_notebook_are_one_line() -> None:
    cell: dict[str, type[ff.Method]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(compile(f"{HEAD} {IF_TENSOR}\n", "<cell 3>", "exec"), cell)
    with pytest.raises(ff.UserError, match=r"method Bad: line 13 of <cell 3>: step and reply run for many clients"):
        ff.run(ff.Experiment(method=cell["Bad"](), dataset="my_data.py:load", model="my_model.py:Net", cohort=2))


def test_debug_shows_everything_and_sequential_takes_if(files: Path) -> None:
    (files / "bad.py").write_text(f"{HEAD} {IF_TENSOR}\n")
    with pytest.raises(ff.UserError) as error:
        main([*words("run bad.py:Bad --debug"), *OWN, "--out", "run"])
    assert "vmap" in str(error.value.__cause__)
    assert main([*words("run bad.py:Bad --engine sequential"), *OWN, "--out", "run"]) == 0


NETS = """
from torch import nn

class Args(nn.Linear):
    def __init__(self, width): super().__init__(64, width)
"""
MISTAKES = {
    "run nowhere.py:A": "method nowhere.py:A: there is no file",
    "run my_method.py:FedNG": "no FedNG in my_method.py (did you mean FedNGD?); it has FedNGD",
    "run my_model.py:Net": "method my_model.py:Net: is not a class derived from fedflat.Method",
    "run broken.py:A": "line 1 of broken.py: SyntaxError",
    "run raises.py:A": "line 2 of raises.py (1 / 0): ZeroDivisionError: division by zero",
    "run script.py:A": "method script.py:A: line 2 of script.py (sys.exit(0)): SystemExit: 0",
    "run fedavg --dataset leaves.py:load": "--dataset leaves.py:load: line 2 of leaves.py (exit(0)): SystemExit: 0",
    "run fedavg --model my_model.py": "--model my_model.py: unknown model (did you mean my_model.py:CLASS?)",
    "run fedavg --model my_data.py:load": "--model my_data.py:load: must be a torch.nn.Module or make one, not tuple",
    "run fedavg --model nets.py:Args": "nets.py:Args: its argument width needs a default; it is called with shape",
    "run fedavg --dataset my_data.py": "--dataset my_data.py: unknown data set (did you mean my_data.py:FUNCTION?)",
    "run fedavg --dataset raises.py:load": "--dataset raises.py:load: line 2 of raises.py",
    "run fedavg --dataset fails.py:load": "line 2 of fails.py (return open('nothing')): FileNotFoundError",
    "run fedavg --dataset fails.py:path": "--dataset fails.py:path: is called without arguments; its path needs",
    "run fedavg --dataset fails.py:other": "must be a fedflat.Dataset, or a function that returns one",
}


@pytest.mark.parametrize(("command", "problem"), MISTAKES.items())
def test_mistakes_in_files(command: str, problem: str, files: Path, capsys) -> None:
    (files / "broken.py").write_text("def (:\n")
    (files / "raises.py").write_text("x = 1\n1 / 0\n")
    (files / "script.py").write_text("import sys\nsys.exit(0)\n")
    (files / "leaves.py").write_text("def load():\n    exit(0)\n")
    (files / "fails.py").write_text(
        "def load():\n    return open('nothing')\n\ndef other():\n    return 3\n\ndef path(path): pass\n"
    )
    (files / "nets.py").write_text(NETS)
    assert main([*words(command), "--out", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not (files / "run").exists()


def test_arrays_may_be_a_list(files: Path) -> None:
    text = (files / "my_data.py").read_text()
    (files / "my_data.py").write_text(text.replace("return x[:150]", "return [x[:150]").replace("y[150:]", "y[150:]]"))
    assert load_dataset("my_data.py:load").classes == 3


def test_a_method_of_a_module_is_found_by_its_path(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "my_project").mkdir()
    (files / "my_project" / "rules.py").write_text((files / "my_method.py").read_text())
    monkeypatch.syspath_prepend(str(files))
    from my_project.rules import FedNGD  # type: ignore[import-not-found]

    experiment = ff.Experiment(method=FedNGD(length=2.0), dataset="my_data.py:load", model="mlp", rounds=1, cohort=2)
    ff.run(experiment, out="run")
    config = yaml.safe_load((files / "run" / "config.yaml").read_text())
    assert config["method"] == {"name": "my_project.rules:FedNGD", "length": 2.0}
    assert f"{files}/my_project/rules.py" in config["code"]
    assert ff.load_model("run")
    assert load_experiment(files / "run" / "config.yaml").method == FedNGD(length=2.0)
    with pytest.raises(ff.UserError, match=r"there is no FedNGD in the module nowhere here .*; give its file"):
        METHODS.find("nowhere:FedNGD")
