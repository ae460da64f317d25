"""What a run imports: packages that only other commands need would make every start slower."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fedflat as ff
from fedflat.runs.build import build_run
from fedflat.runs.training import Training

OTHERS = (
    *("sklearn", "scipy", "plotly", "matplotlib", "pandas", "pyarrow"),
    *("optuna", "flwr", "tensorboard", "wandb", "mlflow", "transformers", "torchvision"),
)
SCRIPT = """
import sys
from fedflat.cli import main
code = main({words})
print(*(name for name in {names} if name in sys.modules))
sys.exit(code)
"""


def imported(words: list[str], names: tuple[str, ...]) -> list[str]:
    """Return those of the packages that a command imports."""
    script = SCRIPT.format(words=words, names=names)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_help_imports_no_package() -> None:
    assert imported(["--help"], ("torch", "numpy", "rich", "tyro", "yaml", *OTHERS)) == []


def test_a_run_and_its_report_import_no_other_package(tmp_path: Path) -> None:
    tiny = ["--model", "mlp", "--rounds", "1", "--local-steps", "1", "--cohort", "2", "--device", "cpu"]
    assert set(imported(["run", "fedavg", *tiny, "--out", str(tmp_path)], OTHERS)) <= {"plotly"}  # for the page


def test_a_try_of_one_round_compiles_the_step_of_a_long_run() -> None:
    """The number of lanes is part of the step, and clients of unequal length make it depend on the rounds looked at."""
    uneven = ff.Experiment(
        method=ff.FedAvg(), model="mlp", partition="lda", alpha=0.1, clients=20, cohort=8, device="cpu"
    )
    lanes = {
        Training(job, build_run(job), None).engine.lanes for job in (replace(uneven, rounds=n) for n in (1, 7, 300))
    }
    assert len(lanes) == 1
