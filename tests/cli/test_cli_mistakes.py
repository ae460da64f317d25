"""Every mistake gives one line with the option, its value and what is allowed, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedflat.cli import main
from fedflat.cli.arguments import parse_method
from fedflat.errors import UserError
from fedflat.runs.device import choose_device

FLAGS = [
    ("run", "method first", "fedsol"),
    ("rnu fedsol", "rnu", "did you mean run?"),
    ("run fedsool", "fedsool", "did you mean fedsol?", "fedavg"),
    ("run fedavg fedsol", "fedavg fedsol", "one method"),
    ("run fedavg --alpha -1", "--alpha", "-1", "at least 0"),
    ("run fedavg --alpha nan", "--alpha", "nan", "a number"),
    ("run fedavg --cohort 21", "--cohort 21", "20"),
    ("run fedavg --cohort 0", "--cohort 0", "between 1 and"),
    ("run fedavg --cohort 1.5", "--cohort 1.5", "a whole number or between 0 (not included) and 1"),
    ("run fedavg --sampling round_robin", "--sampling round_robin", "did you mean round-robin?"),
    ("run fedavg --local-steps 20 --local-epochs 5", "--local-steps 20", "--local-epochs 5", "--local-epochs none"),
    ("run fedavg --availability none.csv", "--availability none.csv", "No such file"),
    ("run fedavg --client-settings none.csv", "--client-settings none.csv", "No such file"),
    ("run fedavg --dropout-rate 1", "--dropout-rate 1", "between 0 and 0.99"),
    ("run fedavg --stragglers 1 --straggler-work 0", "--stragglers 1", "nobody replies with --straggler-work 0"),
    ("run fedavg --clients 2000", "2000"),
    ("run fedavg --clients 99999999999999999999", "--clients 99999999999999999999", "between 1 and"),
    ("run fedavg --rounds abc", "--rounds abc", "a whole number"),
    ("run fedavg --rounds 1.5", "--rounds 1.5", "a whole number"),
    ("run fedavg --rounds 0", "--rounds 0", "between 1 and"),
    ("run fedavg --rounds", "--rounds", "a whole number"),
    ("run fedavg --rounds 3 4", "--rounds 3 4", "a whole number"),
    ("run fedavg --lr fast", "--lr fast", "a number"),
    ("run fedavg --lr 0", "--lr 0", "more than 0"),
    ("run fedavg --lr-decay 1.5", "--lr-decay 1.5", "between 0 (not included) and 1"),
    ("run fedavg --momentum 2", "--momentum 2", "between 0 and 0.9999"),
    ("run fedavg --batch-size -8", "--batch-size -8", "between 1 and"),
    ("run fedavg --local-epochs 99999", "--local-epochs 99999", "between 1 and 10000"),
    ("run fedavg --alpha inf", "--alpha inf", "finite"),
    ("run fedavg --lr inf", "--lr inf", "finite"),
    ("run fedavg --lr 1e400", "--lr inf", "finite"),
    ("run fedsol --rho inf", "--rho inf", "finite"),
    ("run fedsol:rho=inf", "--rho inf", "finite"),
    ("run fedavg --seeds 1 1", "--seeds 1 1", "once"),
    ("run fedavg --seeds -1", "--seeds -1", "between 0 and"),
    ("run fedavg --seeds 99999999999999999999", "--seeds 99999999999999999999", "between 0 and 4294967295"),
    ("run fedavg --seeds", "--seeds", "at least one"),
    ("run fedavg --cohrt 3", "--cohrt", "did you mean --cohort?", "fedflat run fedavg --help"),
    ("run fedavg --learning-rate 0.1", "--learning-rate: unknown option (did you mean --lr?)"),
    ("run fedavg --learning-rate=0.1", "--learning-rate: unknown option (did you mean --lr?)"),
    ("run fedavg --seed 1", "--seed: unknown option (did you mean --seeds?)"),
    ("compare fedavg --num_rounds 3", "--num_rounds: unknown option (did you mean --rounds?)"),
    ("run fedavg --rho 3", "--rho", "unknown option"),
    ("train fedavg", "train: unknown command (did you mean run?)"),
    ("run fedavg --dataset CIFAR10", "--dataset CIFAR10: unknown data set (did you mean cifar10?)"),
    ("run fedavg --dataset tab.npz", "--dataset tab.npz: unknown data set (did you mean npz:tab.npz?)"),
    ("run fedavg --dataset tab.csv", "--dataset tab.csv: unknown data set (did you mean table:tab.csv?)"),
    ("run fedavg --dataset csv:tab.csv", "(did you mean table:tab.csv?)"),
    ("run fedavg --dataset table:tab.csv --target price", "--dataset table:tab.csv: there is no file tab.csv"),
    ("run fedavg --task multilabel", "--task multilabel: needs targets that are 0 or 1 for each label"),
    ("run fedntd --task regression --model mlp", "method fedntd: --task regression: this method compares class scores"),
    ("run fedavg --holdout-clients 0.01", "--holdout-clients 0.01: holds out 0 of 20 clients"),
    ("run fedavg --dataset /proc/self/task", "(did you mean folder:/proc/self/task?)"),
    ("run FedAVG", "method FedAVG: unknown (did you mean fedavg?)"),
    ("run fedavg --seeds 0,1,x", "--seeds 0 1 x", "a whole number"),
    ("run fedavg --seeds 0,1,1", "--seeds 0 1 1", "once"),
    ("run fedavg --device cuda:99", "--device cuda:99: ", " GPU"),
    ("run fedavg --device gpu", "--device gpu: must be one of auto, cpu, cuda, cuda:N, mps"),
    ("run fedavg --target 80", "--target 80.0: must be between 0 and 1"),
    ("run fedavg --target 80%", "--target 80%: must be a number"),
    ("run fedavg --target 0,8", "--target 0,8: must be a number"),
    ("run fedavg --resume true", "true: belongs to no option, and on/off takes no value"),
    ("run fedsmoo --regularise false", "false: belongs to no option, and on/off takes no value"),
    ("run fedavg --dataset digit", "digit", "did you mean digits?"),
    ("run fedavg --dataset npz:nowhere.npz", "nowhere.npz"),
    ("run fedavg --model digits-cn", "digits-cn", "did you mean digits-cnn?"),
    ("run fedavg --partition dirichlett", "--partition dirichlett", "did you mean dirichlet?", "shards"),
    ("run fedavg --partition natural", "natural"),
    ("run fedavg --engine turbo", "--engine turbo", "sequential"),
    ("run fedavg --config", "--config", "a path"),
    ("run fedavg --config missing.yaml", "--config missing.yaml", "No such file"),
    ("run fedavg --resume", "--resume", "--out"),
    ("run fedsol:rho", "fedsol:rho", "name=value"),
    ("run fedsol:rho=abc", "fedsol:rho=abc", "a number"),
    ("run fedsol:foo=1", "foo", "rho"),
    ("run fedsol:rh=1", "rh", "did you mean rho?"),
    ("run fedavg+fedsol", "fedavg+fedsol", "around"),
    ("run fedavgm+fedsol --rho 3", "--rho: flags set the outermost method, fedavgm; write fedavgm+fedsol:rho=3"),
    ("run fedavgm+fedsol --rho=3", "write fedavgm+fedsol:rho=3"),
    ("run fedswa+fedavgm+fedsol:lam=fixed --rounds 2 --rho", "write fedswa+fedavgm+fedsol:lam=fixed,rho=..."),
    ("run fedswa+fedavgm:beta=0.5+fedsol --server-lr 2", "write fedswa+fedavgm:beta=0.5,server-lr=2+fedsol"),
    ("run fedavgm+fedsol --rh 3", "--rh: unknown option;"),
    ("run fedsol -- --rounds 1", "--: is not needed"),
    ("run fedsol --rho -2", "--rho -2", "at least 0"),
    ("run fedsol --lam tensr", "--lam tensr", "did you mean tensor?"),
    ("compare", "fedflat compare fedavg"),
    ("compare fedavg fedavg", "fedavg fedavg", "once"),
    ("compare fedavg fedsol:rho=1,rho=2", "fedsol:rho=1,rho=2", "rho may be given once"),
    ("compare fedavg fedavgm:server-lr=1,server_lr=2", "server_lr may be given once"),
    ("compare fedavg fedavgm+", "method fedavgm+", "after the +"),
    ("compare fedsol-ablation:proximal=moon", "method fedsol-ablation:proximal=moon: --perturb head", "--perturb all"),
    ("compare fedavg --target 1.5", "--target 1.5", "between 0 and 1"),
    ("compare fedavg fedgloss --cohort 50", "--cohort 50", "20"),
    ("cite fedsool", "fedsool", "did you mean fedsol?"),
    ("cite fedavgm+fedsool", "fedsool", "did you mean fedsol?"),
    ("methods --jsn", "--jsn", "did you mean --json?"),
    ("report", "run folder"),
    ("report nowhere", "nowhere"),
    ("report nowhere --out page.pdf", "--out page.pdf", "ends in .html"),
    ("report nowhere --out /proc", "--out /proc", "is a folder", "/proc/report.html"),
    ("report nowhere --out /proc/new/a.html", "--out /proc/new/a.html", "cannot be written"),
    ("personalise", "one complete run"),
    ("personalise nowhere", "nowhere"),
    ("personalise nowhere --epochs -1", "--epochs -1", "between 0 and 10000"),
    ("personalise nowhere --epochs 4000000000", "--epochs 4000000000", "between 0 and 10000"),
    ("personalise nowhere --out /proc", "--out /proc", "is a folder", "/proc/personalise.json"),
    ("personalise nowhere --out nowhere/config.yaml", "--out nowhere/config.yaml", "ends in .json"),
    ("personalise nowhere --out nowhere/result.json", "--out nowhere/result.json", "a run's result"),
    ("personalise /proc/nowhere", "--out /proc/nowhere/personalise.json", "cannot be written"),
    ("toy --out toy.txt", "--out toy.txt", ".png"),
    ("toy --out /proc/a.png", "--out /proc/a.png", "cannot be written"),
    ("data show digits --out /proc/a.png", "--out /proc/a.png", "cannot be written"),
    ("data shwo", "shwo", "did you mean show?"),
    ("data show --alpha -1", "--alpha -1", "at least 0"),
    ("data prepare", "name one data set"),
    ("data prepare cifar11", "cifar11", "did you mean cifar10?"),
]


@pytest.mark.parametrize("words", FLAGS, ids=lambda case: case[0])
def test_flags(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    _refused(main(words[0].split()), capsys.readouterr(), words[1:])
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_numbered_and_apple_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert (choose_device("cuda:1"), chosen) == (torch.device("cuda", 1), [1])
    assert [choose_device(name).type for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    with pytest.raises(UserError, match="this host has 2 GPUs, numbered from 0"):
        choose_device("cuda:2")
    with pytest.raises(UserError, match="no Apple GPU that torch can use here"):
        choose_device("mps")


FILES = [  # what a YAML file says, and parts of the message
    ("round: 3", "unknown key 'round' (did you mean rounds?)"),
    ("learning_rate: 0.1", "unknown key 'learning_rate' (did you mean lr?)"),
    ("lr: -1", "broken.yaml: --lr -1: must be more than 0"),
    ("rounds: many", "--rounds many", "a whole number"),
    ("rounds: [3]", "--rounds 3", "a whole number"),
    ("seeds: 3", "--seeds 3", "a list"),
    ("alpha: .nan", "--alpha nan", "a number"),
    ("lr: .inf", "--lr inf", "finite"),
    ("lr: " + "9" * 400, "--lr 999", "finite"),
    ("rounds: " + "9" * 5000, "not valid YAML"),
    ("rounds: {a: [", "not valid YAML"),
    ("rounds: !!int ''", "not valid YAML"),
    ("rounds: !!bool x", "not valid YAML"),
    ("rounds: !!timestamp x", "not valid YAML"),
    ("lr: " + ":".join(["59"] * 200) + ".5", "lr"),
    ("lr: 0x" + "f" * 5000, "lr", "a number of too many digits"),
    ("lr: !!" + "x" * 5000 + " 1", "not valid YAML"),
    ("lr: !!bool " + "x" * 5000, "not valid YAML"),
    ("lr: !!float " + "x " * 2500, "not valid YAML"),
    ("? " + "x " * 2500 + "\n? " + "x " * 2500, "not valid YAML", "appears twice"),
    ('client_settings: "\\ud800"', "--client-settings", "character"),
    ('availability: "a\\0b"', "--availability", "character"),
    ('dataset: "\\ud800.py:MINE"', "--dataset", "character"),
    ("dataset: " + "x" * 5000, "File name too long"),
    ("init: " + "x" * 5000, "File name too long"),
    ("task: !!set {a, b}", "--task", "must be one of"),
    ("- rounds", "mapping"),
    ("", "mapping"),
    ("dataset: 5", "--dataset 5"),
    ("model: [a]", "--model"),
    ("method: fedsool", "broken.yaml: method fedsool", "did you mean fedsol?"),
    ("dataset: own:mine-12ab34cd", "--dataset own:mine-12ab34cd: was given in Python", "fedflat.run"),
    ("model: own:Net-12ab34cd", "--model own:Net-12ab34cd: was given in Python", "fedflat.run"),
    ("method: {rho: 2}", "'name'"),
    ("method: {name: fedsol, rhoo: 2}", "broken.yaml: method fedsol: unknown key 'rhoo' (did you mean rho?)"),
    ("method: {name: fedsol, rho: big}", "--rho big", "a number"),
    ("method: {name: fedavg, rho: 1}", "unknown key 'rho'"),
    ("method: {name: fedavgm, inner: 3}", "inner"),
]


@pytest.mark.parametrize("case", FILES, ids=lambda case: case[0][:40])
def test_yaml(case: tuple[str, ...], tmp_path: Path, capsys) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(case[0])
    code = main(["run", "fedavg", "--config", str(file), "--out", str(tmp_path / "run")])
    output = capsys.readouterr()
    _refused(code, output, case[1:])
    assert len(output.err) < 1000
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("letters", ["x" * 5000, "x " * 2500], ids=["word", "words"])
@pytest.mark.parametrize(
    "words", ["run fedsol:{}", "run fedsol:{}=1", "sweep fedsol {}=1", "run fedavg --availability {}"]
)
def test_long_values_are_not_repeated(words: str, letters: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "clients.csv").write_text(f"client,from,to\n{letters},1,2\n")
    given = str(tmp_path / "clients.csv") if "availability" in words else letters
    code = main([word.format(given) for word in words.split()])
    output = capsys.readouterr()
    _refused(code, output, ("x x",) if " " in letters else ("xxx",))


def test_yaml_that_is_not_text(tmp_path: Path, capsys) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00rounds")
    _refused(main(["run", f"--config={file}"]), capsys.readouterr(), (str(file), "not valid YAML"))


def test_files_that_do_not_contain_data(tmp_path: Path, capsys) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("lr: 0.1")
    code = main(["run", "fedavg", "--dataset", f"npz:{file}", "--out", str(tmp_path / "run")])
    output = capsys.readouterr()
    _refused(code, output, (f"--dataset npz:{file}", "not an npz file"))
    assert "pickle" not in output.err
    words = ["data", "prepare", "cifar10", "--from", str(tmp_path), "--cache", str(tmp_path / "cache")]
    _refused(main(words), capsys.readouterr(), (f"--from {tmp_path}: no file data_batch_1",))
    words[4] = ""
    _refused(main(words), capsys.readouterr(), ("--from : must be a path",))


def test_what_may_be_infinite() -> None:
    """FedGF's threshold, so that no round counts as diverged, and the clip of replies that are not clipped."""
    for spec in ("fedgf:threshold=inf", "dpfedavg:clip=inf,noise=0"):
        parse_method(spec)
    with pytest.raises(UserError, match="more than 0"):
        parse_method("dpfedavg:clip=0")


def test_a_hyper_parameter_of_a_wrapper_behind_the_wrapped_method() -> None:
    problem = r"method compress\+fedavg:bits=4: bits is a hyper-parameter of compress; write compress:bits=4\+fedavg"
    with pytest.raises(UserError, match=problem):
        parse_method("compress+fedavg:bits=4")
    parse_method("fedavgm+fedgloss:beta=5")  # both have a beta: it is the wrapped method's


def test_folders_that_cannot_be_used(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("mine")
    for out, problem in [("file", "is a file"), ("file/below", "file/below")]:
        code = main(["run", "fedavg", "--rounds", "1", "--out", str(tmp_path / out)])
        _refused(code, capsys.readouterr(), (f"--out {tmp_path / out}", problem))
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_that_may_not_be_written(capsys) -> None:
    _refused(
        main(["run", "fedavg", "--rounds", "1", "--out", "/proc/fedflat"]),
        capsys.readouterr(),
        ("--out /proc/fedflat", "cannot be written"),
    )


@pytest.mark.parametrize(
    "words", ["run fedsool", "run fedavg --alpha -1", "run fedavg --cohort 21 --out never", "compare fedsol:rho"]
)
def test_process(words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedflat", *words.split()], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedflat: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def _refused(code: int, output: tuple[str, str], expected: tuple[str, ...]) -> None:
    """Assert that a command printed one line with all `expected` texts to stderr, and nothing else."""
    out, err = output
    assert code == 2
    assert err.startswith("fedflat: ")
    assert err.count("\n") == 1
    assert not out
    assert len(err) < 1000, "no long value is repeated"
    for text in expected:
        assert text in err
