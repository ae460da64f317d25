"""Every benchmark that needs no GPU runs in its smallest form and prints its results. Times are not checked."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedflat.models import build_model
from fedflat.runs.build import build_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OTHER = BENCHMARKS.parent / ".venv-bench" / "bin" / "python"
sys.path.insert(0, str(BENCHMARKS))

import plain  # noqa: E402


def run(script: str, *arguments: str, python: str = sys.executable) -> str:
    """Run a benchmark and return what it prints."""
    command = [python, str(BENCHMARKS / script), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_line(text: str) -> dict:
    """Return the JSON object in the last line."""
    return json.loads(text.strip().splitlines()[-1])


def check_record(record: dict, rounds: int) -> None:
    """Check the numbers that all programs report of a job."""
    assert record["startup_s"] > 0
    assert record["s_per_round"] > 0
    assert len(record["accuracies"]) == rounds
    assert all(0 <= accuracy <= 1 for accuracy in record["accuracies"])


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Write two rounds of the digits job to a file and return its path."""
    import compare_cpu

    path = str(tmp_path_factory.mktemp("job") / "job.npz")
    compare_cpu.write_job(path, 2, 0)
    return path


def test_the_job_file_holds_every_client(job):
    stored = plain.load_job(job)
    assert stored.clients == 20
    assert (stored.rounds, stored.cohort, stored.local_epochs, stored.batch_size) == (2, 5, 5, 32)
    assert {len(stored.client(number)[1]) for number in range(20)} == {71}


@pytest.mark.parametrize(
    ("model", "plain_model", "shape"),
    [
        ("digits-cnn", plain.digits_cnn, (1, 8, 8)),
        ("fedavg-cnn", plain.fedavg_cnn, (3, 32, 32)),
        ("pfl-cnn", plain.pfl_cnn, (3, 32, 32)),
    ],
)
def test_plain_models_start_with_the_parameters_of_ours(model, plain_model, shape):
    torch.manual_seed(3)
    ours = list(build_model(model, shape, 10).parameters())
    torch.manual_seed(3)
    theirs = list(plain_model().parameters())
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_plain_augmentation_crops_flips_and_cuts():
    x = torch.arange(1, 1 + 20 * 3 * 6 * 6).view(20, 3, 6, 6)
    padded = torch.nn.functional.pad(x, [2] * 4)
    flipped = 0
    for image, moved in zip(padded, plain.crop_and_flip(x, 2), strict=True):
        windows = [image[:, i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        not_flipped = any(torch.equal(moved, window) for window in windows)
        assert not_flipped or any(torch.equal(moved, window.flip(2)) for window in windows)
        flipped += not not_flipped
    assert 0 < flipped < 20
    cut = plain.cut_out(x, 4) == 0
    assert (cut[:, 0] == cut[:, 2]).all()
    sizes = cut[:, 0].flatten(1).sum(1)
    assert sizes.max() <= 16
    assert sizes.min() >= 4
    assert len(set(sizes.tolist())) > 1


@pytest.mark.parametrize(
    ("script", "package"), [("peers/flower/job.py", "flwr.simulation, ray"), ("peers/pfl/job.py", "pfl")]
)
def test_other_frameworks(script, package, job):
    if not OTHER.exists() or subprocess.run([str(OTHER), "-c", f"import {package}"], capture_output=True).returncode:
        pytest.skip(f"{package} is not installed; make bench installs it")
    check_record(last_line(run(script, job, python=str(OTHER))), 2)


def test_compare_without_the_others(tmp_path):
    out = tmp_path / "compare.json"
    nowhere = str(tmp_path / "python")
    text = run("compare_cpu.py", "--rounds", "2", "--repetitions", "1", "--python", nowhere, "--out", str(out))
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert {len(cells) for cells in rows} == {7}
    names = [cells[0].strip() for cells in rows[2:]]
    assert names[0] == "fedflat, batched"
    assert sum("not installed" in cells[1] for cells in rows) == 2
    records = json.loads(out.read_text())["records"]
    for name in names[:4]:
        check_record(records[name][0], 2)


def test_engines(tmp_path):
    out = tmp_path / "engines.json"
    assert "| mlp | 32 | 15 |" in run("engines.py", "--models", "mlp", "--rounds", "1", "--out", str(out))
    (record,) = json.loads(out.read_text())["records"]
    assert record["wall_gain"] == pytest.approx(record["loop_wall_s"] / record["batched_wall_s"])
    assert record["auto"] == "batched"


def test_scaling_measures_and_draws(tmp_path):
    out, plot = tmp_path / "scaling.json", tmp_path / "scaling.png"
    small = ["--device", "cpu", "--rounds", "1", "--most-clients", "1000"]
    text = run("scaling.py", *small, "--sweeps", "population", "cohort", "--out", str(out))
    kept = json.loads(out.read_text())
    assert [r["value"] for r in kept["records"] if r["sweep"] == "population"] == [100, 1000]
    assert [r["value"] for r in kept["records"] if r["sweep"] == "cohort"] == [1, 2, 5, 10, 20]
    assert run("scaling.py", "--read", str(out), "--plot", str(plot)).splitlines()[1:] == text.splitlines()[1:]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_agreement() -> None:
    lines = run("agreement.py", "fedavg", "--device", "cpu").strip().splitlines()
    name, difference = lines[-1].split()
    assert name == "fedavg"
    assert 0 <= float(difference) < 1e-5


def test_flatness() -> None:
    lines = run("flatness.py", "--samples", "8", "--grid", "3", "--batch", "4", "--device", "cpu").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["lambda1", "lambda1", "landscape", "landscape"]
    assert all(float(line.split()[-2]) > 0 for line in lines[1:])


def test_sweep() -> None:
    small = ["--dataset", "digits", "--model", "mlp", "--rounds", "1", "--radii", "0.5", "1", "--rates", "0.01"]
    record = last_line(run("sweep.py", *small))
    assert record["points"] == 2
    assert record["ratio"] == pytest.approx(record["sweep_s"] / record["single_runs_s"], abs=0.02)
    assert record["largest_accuracy_gap"] < 0.02


def test_precision(tmp_path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["precision.py", "fedavg", "--seeds", "0", "1", "--rounds", "1", "--device", "cpu", "--made-up", "8"]
    words += ["--out", str(out), "--precisions", "fp32"]
    run(*words)
    assert run(*words, "bf16").count("accuracies") == 1  # fp32 is trained already
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [(row["precision"], len(row["accuracies"])) for row in rows] == [("fp32", 2), ("bf16", 2)]


def test_breakdown() -> None:
    average, *lines = run("breakdown.py", "digits", "--rows", "5").strip().splitlines()
    assert float(average.split()[0]) > 0
    assert lines[0].startswith("15 steps of 5 lanes, ")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
    assert len(rows) == 5
    times = [float(row[1]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(float(row[2]) for row in rows) <= 100


def test_splits() -> None:
    rows = [line.strip("| ").split(" | ") for line in run("splits.py", "--alpha", "0.5").splitlines()[2:]]
    assert [row[0] for row in rows] == [*(f"lda, seed {n}" for n in range(6)), "lda-released, seed 19940817"]
    shares = [[float(value) for value in row[1:]] for row in rows]
    assert all(0.1 < top < 0.9 and 0 < equally < by_samples < top for top, by_samples, equally in shares)


def test_perturbations() -> None:
    lines = run("perturbation.py", "--dataset", "digits", "--model", "mlp").splitlines()[2:]
    lengths = {
        tuple(cells[:2]): [float(v) for v in cells[2:]] for cells in (row.strip("| ").split(" | ") for row in lines)
    }
    assert len(lengths) == 6
    for where in ("head", "body", "all"):
        assert all(0 < a < b for a, b in zip(lengths["tensor", where], lengths["dim0", where], strict=True))


def test_jobs_beside_the_plain_loop() -> None:
    lines = run("jobs.py", "digits", "--rounds", "2", "--repetitions", "2", "--loop", "2").splitlines()
    row = json.loads(lines[1])
    assert row["ratio"] == pytest.approx(row["loop_ms_per_round"] / row["ms_per_round"], abs=0.06)
    assert (row["rounds"], row["repetitions"]) == (1, 2)
    assert lines[-1].startswith(f"| digits | auto | 1 | {row['full_job_s']} |")


def test_compression(tmp_path) -> None:
    files = {name: tmp_path / f"compression.{name}" for name in ("json", "png", "md")}
    small = ["--dataset", "digits", "--rounds", "1", "--methods", "fedavg", "--device", "cpu"]
    where = ["--runs", str(tmp_path / "runs"), "--out", str(files["json"]), "--plot", str(files["png"])]
    text = run("compression.py", *small, *where, "--bits", "32", "1", "--page", str(files["md"]))
    full, one_bit = json.loads(files["json"].read_text())["records"]
    assert (full["run"], one_bit["run"]) == (["fedavg", 32, "sent"], ["fedavg", 1, "feedback"])
    assert one_bit["bytes_up"] < full["bytes_up"] / 25
    assert all(record["lambda1"][0] > 0 for record in (full, one_bit))
    assert text.splitlines()[1:] == [line for line in files["md"].read_text().splitlines() if line.startswith("|")]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_attacks_and_defences_are_one_table() -> None:
    words = ["--rounds", "1", "--seeds", "0", "--attacks", "labels", "--defences", "mean", "median"]
    heading, _, row = run("attacks.py", *words).strip().splitlines()
    assert heading == "| attack | mean | median |"
    assert row.startswith("| labels | ")


def test_threads() -> None:
    from threads import Spent, command_table

    found = {"chosen": (Spent(2.0, 3.0), Spent(5.0, 3.0)), "1 thread": (Spent(1.0, 1.0), Spent(1.5, 1.0))}
    assert command_table(found, 2).splitlines()[2] == "| chosen | 2 | 2 | 3 | 5 | 2.5 |"
    assert run("threads.py", "--rounds", "0", "--models", "mlp").splitlines()[-1].startswith("| mlp | 32 | 1 |")


def test_gpu_table_in_its_smallest_form(tmp_path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["gpu_table.py", "--tiny", "--device", "cpu", "--out", str(out), "--rows"]
    run(*words, "commands", "blazefl")
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [row["row"] for row in rows] == ["commands", "blazefl"]
    lines = run(*words, "blazefl").splitlines()  # measured already
    assert len(lines) == 2 + 3 + 1
    assert lines[-1].startswith(f"| BlazeFL's CIFAR-10 job, 5 rounds | auto | {rows[1]['full_job_s']} |")


def test_blazefls_job_has_its_size() -> None:
    from jobs import JOBS, made_up

    assert sum(p.numel() for p in plain.blazefl_cnn().parameters()) == 62_006
    built = build_run(made_up(JOBS["blazefl"]))
    assert sum(built.client_data.lengths([0] * 100, 0, list(range(100)))) * JOBS["blazefl"].rounds == 25_000


def test_lora_beside_a_plain_loop():
    record = last_line(run("lora.py", "--device", "cpu", "--tiny", "--rounds", "1"))
    assert record["adapters"] == 2 * 2 * 2 * 8 * 16, "A and B of two layers in each of two blocks"
    assert record["fedflat"]["client_steps_per_s"] > 0
    assert record["plain"]["client_steps_per_s"] > 0
    assert record["plain"]["library"] in ("peft", "fedflat.lora")


def test_the_timeline_of_a_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TIMELINE_OUT", str(tmp_path / "timeline.txt"))
    words = shlex.split("run fedavg --model mlp --clients 4 --cohort 2 --local-steps 1 --rounds 1 --out")
    assert "report in" in run("timeline.py", *words, str(tmp_path / "run"))
    pieces, _, functions = (tmp_path / "timeline.txt").read_text().partition("in all:")
    assert "torch/__init__.py:<module>" in pieces  # what takes longest
    assert "fedflat/runs/train.py:run\n" in functions
    assert functions.endswith("the command\n")
