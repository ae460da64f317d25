"""The lessons of docs/tutorial: their commands and examples run in order, with fewer rounds than printed."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from fedflat.cli import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.M | re.S)
FEWER = {
    **dict.fromkeys(("run", "compare"), "--rounds 1 --local-epochs 1 --seeds 0 --engine sequential"),
    "sweep": "--rounds 1 --local-epochs 1 --seeds 0",
    "analyse": "--samples 20 --grid 3 --draws 4 --probes 2",
}


@pytest.fixture(autouse=True)
def in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_lesson(name: str) -> str:
    """Run the blocks of a lesson one after the other and return its text."""
    page = (DOCS / "tutorial" / f"{name}.md").read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    for language, block in BLOCK.findall(page):
        if language == "sh":
            for line in block.splitlines():
                run_line(line)
        elif file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, name, "exec"), scope)
    return page


def run_line(line: str) -> None:
    """Run one command of a page, in this process where it is Python's or fedflat's."""
    program, *words = shlex.split(line.replace("--probe-every 5", "--probe-every 1"))
    if program == "python":
        runpy.run_path(words[0])
    elif program == "torchrun":  # tests/distributed runs real ranks; here torchrun's own words are parsed
        options = get_args_parser().parse_args(words)
        assert (options.training_script, options.module) == ("fedflat", True)
        run_line(shlex.join(["fedflat", *options.training_script_args]))
    else:
        assert program == "fedflat"
        assert main([*words, *FEWER.get(words[0], "").split()]) == 0


def test_first_comparison_and_partition(capsys: pytest.CaptureFixture[str]) -> None:
    run_lesson("1-first-comparison")
    assert "@inproceedings{lee2024fedsol" in capsys.readouterr().out.replace("\n", "")
    page = run_lesson("2-partition")
    printed = capsys.readouterr().out
    tables = re.findall(r"```text\n(.*?)```", page, re.S)
    assert len(tables) == 3
    for row in re.findall(r"^│ \d.*│$", "".join(tables), re.M):
        assert row in printed, "the page shows what the command prints"
    assert Path("partitions.html").exists()


def test_own_data_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_lesson("3-own-data")
    printed = capsys.readouterr().out
    assert all(row in printed for row in re.findall(r"^│ \d.*│$", page, re.M))
    run_lesson("4-own-model")
    assert re.search(r"^\[[012], [012], [012], [012], [012]\]$", capsys.readouterr().out, re.M)
    assert Path("net.pt").exists()


def test_own_method(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_lesson("5-own-method")
    assert "scale: 0.05" in Path("runs/sign/config.yaml").read_text()
    source = Path("my_method.py").read_text()
    bad = ["g = task.grad(w, batch)", "if g.norm() > 1:", "    g = ff.unit(g)", "return g, client"]
    Path("my_method.py").write_text("\n        ".join([source.partition("        return")[0].rstrip(), *bad]) + "\n")
    assert main(["run", "my_method.py:FedSign", "--model", "mlp", "--rounds", "1"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message in " ".join(page.split())


def test_choose_rho(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_lesson("6-choose-rho")
    assert "train it on all samples: fedflat run fedsam --rho" in capsys.readouterr().out
    best = re.search(r"best: (--rho [\d.]+)", page)
    assert best is not None
    assert f"fedflat run fedsam {best[1]} --model mlp" in page


def test_why_flatter(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_lesson("7-why-flatter")
    printed = capsys.readouterr().out
    for heading in ("loss", "λ1", "λ1/λ5", "trace", "LPF"):
        assert heading in printed
        assert heading in page
    assert Path("flat.html").exists()


def test_several_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_lesson("8-several-gpus")
    assert re.findall("nproc-per-node ([28])", page) == ["8", "2"]
    assert capsys.readouterr().out.splitlines()[-1] == "True"


def test_real_federation() -> None:
    page = run_lesson("9-real-federation")
    nodes = re.search(r"--nodes (\d)", page)
    assert nodes is not None
    readme = Path("app/README.md").read_text(encoding="utf-8")
    for command in ("flower-superlink", "flower-supernode --superlink", "flwr run . fedflat", "make_certificates.py"):
        assert command in page
        assert command in readme
    assert f"clients = {nodes[1]}" in Path("app/pyproject.toml").read_text()
