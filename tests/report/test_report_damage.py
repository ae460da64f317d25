"""Files with values of a wrong type: the report names the folder or file and shows the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedflat.report.html import make_report

MakeRun = Callable[..., Path]
CONFIG: list[dict[Any, Any]] = [
    {"dataset": ["digits"]},
    {"dataset": {"a": 1}},
    {"model": 3},
    {"partition": ["iid"]},
    {"alpha": [1]},
    {"alpha": "x"},
    {"shards": {"x": 1}},
    {"partition_seed": [0]},
    {"validation": {"a": 1}},
    {"rounds": {}},
    {"seeds": 3},
    {"method": ["fedavg"]},
    {5: 6},
]
RESULT: list[dict[str, Any]] = [
    {"final_accuracy": "x"},
    {"last10_accuracy_std": "x"},
    {"seconds": None},
    {"seeds": None},
    {"seeds": []},
    {"seeds": ["a"]},
    {"diverged_seeds": 3},
    {"versions": [1]},
    {"versions": {"torch": [1]}},
    {"bytes_up_per_client_round": None},
]
ROWS: list[dict[str, Any]] = [
    {"probes": {"classes.accuracy": [[1]]}},
    {"probes": {"drift.mean": float("nan")}},
    {"accuracy": float("nan")},
    {"accuracy": True},
    {"loss": float("inf")},
    {"round": 10**400},
    {"seconds": "x"},
]
ANALYSES: list[tuple[str, dict[str, Any]]] = [
    ("hessian", {"lambda1": [1]}),
    ("hessian", {"eigenvalue": [[1], [2]]}),
    ("lpf", {"lpf": "x"}),
    ("local", {"mean_lambda_local": {}}),
    ("landscape", {"x": [None] * 3}),
    ("landscape", {"x": [0.0], "y": [0.0], "loss": [[1.0]]}),
    ("landscape", {"loss": [[[1.0]] * 3] * 3}),
    ("path", {"distance": 3}),
]


def change(path: Path, values: dict[Any, Any]) -> None:
    """Replace values in a JSON or YAML file."""
    read, write = (yaml.safe_load, yaml.safe_dump) if path.suffix == ".yaml" else (json.loads, json.dumps)
    path.write_text(write(read(path.read_text()) | values))


def add_row(path: Path, values: dict[str, Any]) -> None:
    row = {"round": 2, "seed": 0, "accuracy": 0.5, "loss": 1.0} | values
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(("config.yaml", values) for values in CONFIG),
        *(("result.json", values) for values in RESULT),
        *(("metrics.jsonl", values) for values in ROWS),
    ],
    ids=str,
)
def test_a_damaged_run_is_named(name: str, values: dict[Any, Any], make_run: MakeRun, tmp_path: Path) -> None:
    good, bad, page = make_run("good", [0.5]), make_run("bad", [0.5]), tmp_path / "page.html"
    (add_row if name == "metrics.jsonl" else change)(bad / name, values)
    (warning,) = make_report([bad, good], page, 0.8)
    assert warning.startswith(f"skipped: {bad}: damaged run folder")
    assert ">good</td>" in page.read_text()


def test_config_yaml_is_read_as_fedflat_run_reads_it(make_run: MakeRun, tmp_path: Path) -> None:
    ways = ["lr: 5e-2", "lr: 0.1\nlr: 0.2", "alpha: &a 1\nlr: *a"]
    runs = [make_run(f"run{n}", [0.5]) for n in range(len(ways))]
    for run, line in zip(runs, ways, strict=True):
        path = run / "config.yaml"
        kept = [text for text in path.read_text().splitlines() if not text.startswith(("lr:", "alpha:"))]
        path.write_text("\n".join([*kept, line]))
    warnings = make_report(runs, tmp_path / "page.html", 0.8)
    assert [text.split(": ")[1] for text in warnings if text.startswith("skipped")] == [str(runs[1]), str(runs[2])]


@pytest.mark.parametrize(("what", "values"), ANALYSES, ids=str)
def test_a_damaged_analysis_is_named(
    what: str, values: dict[str, Any], make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path
) -> None:
    run, page = make_run("a", [0.5]), tmp_path / "page.html"
    analyse(run)
    path = run / "analysis" / f"{what}.json"
    seed = json.loads(path.read_text())["seeds"]["0"] | values
    change(path, {"seeds": {"0": seed}})
    (warning,) = make_report([run], page, 0.8)
    assert warning.startswith(f"{path}: damaged")
    assert '<table id="flat"' in page.read_text()
