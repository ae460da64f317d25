"""Nodes with own data: they train the model of a simulation on all data, or an error says why they cannot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import EXPERIMENT, Loopback, assert_same, federate, simulate
from PIL import Image

from fedflat.runs.build import BuiltRun, build_run


def arrays_of(built: BuiltRun) -> dict[str, Any]:
    """Return all clients' samples, one client after another, as arrays of an npz file."""
    data, every = built.dataset, np.concatenate(built.client_rows)
    owner = np.concatenate([np.full(len(part), k) for k, part in enumerate(built.client_rows)])
    return {"x": data.x[every], "y": data.y[every], "x_test": data.x_test, "y_test": data.y_test, "client": owner}


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    """Write the digits of four clients into four files, and a fifth with the test samples for the server."""
    built = build_run(EXPERIMENT)
    data = built.dataset
    for k, part in enumerate(built.client_rows):
        np.savez(tmp_path / f"{k}.npz", x=data.x[part], y=data.y[part], x_test=data.x_test[:5], y_test=data.y_test[:5])
    np.savez(tmp_path / "server.npz", **arrays_of(built))
    return tmp_path


def test_nodes_read_their_own_files(own_data: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"npz:{own_data / 'server.npz'}", partition="natural")
    grid = Loopback(experiment)
    for k, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": k, "data": f"npz:{own_data / f'{k}.npz'}"}
    assert_same(federate(grid, experiment, own_data / "run"), simulate(experiment))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"x": np.zeros((3, 1, 9, 8), np.uint8), "y": np.zeros(3, int)},
            "samples are uint8 [1, 9, 8], the federation's are uint8 [1, 8, 8]",
        ),
        (
            {"x": np.full((3, 1, 8, 8), 255.0)},
            "samples are float32 [1, 8, 8], the federation's are uint8 [1, 8, 8]",
        ),
        ({"y": np.full(3, 10)}, "label 10 found, there are 10 classes"),
    ],
)
def test_own_data_that_do_not_fit(change: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {"x": np.zeros((3, 1, 8, 8), np.uint8), "y": np.zeros(3, int)} | change
    np.savez(tmp_path / "own.npz", **arrays, x_test=arrays["x"], y_test=np.zeros(3, int))
    grid = Loopback(EXPERIMENT)
    grid.contexts[100].node_config = {"partition-id": 0, "data": f"npz:{tmp_path / 'own.npz'}"}
    federate(grid, dataclasses.replace(EXPERIMENT, rounds=1), tmp_path / "run")
    assert any(reason in record.getMessage() for record in caplog.records)


WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NUMBERS = [str(label) for label in range(10)]


@pytest.fixture(scope="module")
def few() -> BuiltRun:
    """Return digits of four clients, about 12 samples each; no client has every class."""
    built = build_run(dataclasses.replace(EXPERIMENT, alpha=0.1))
    parts = [part[:: max(1, len(part) // 12)] for part in built.client_rows]
    assert all(len(np.unique(built.dataset.y[part])) < 10 for part in parts)
    return built._replace(client_rows=parts)


def write_images(half: Path, x: Any, y: Any, names: list[str]) -> list[str]:
    """Write half/CLASS/NUMBER.png and return the files' names."""
    files = [f"{names[int(label)]}/{number}.png" for number, label in enumerate(y)]
    for name, pixels in zip(files, x, strict=True):
        (half / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(half / name)
    return files


def write_nodes(root: Path, few: BuiltRun, names: list[str]) -> None:
    """Write root/K/train and root/K/test for every client K; the format requires the test folder."""
    for k, part in enumerate(few.client_rows):
        for half in ("train", "test"):
            write_images(root / str(k) / half, few.dataset.x[part], few.dataset.y[part], names)


def write_server(root: Path, few: BuiltRun, names: list[str]) -> None:
    """Write all clients' samples into one folder, and test samples."""
    arrays = arrays_of(few)
    files = write_images(root / "train", arrays["x"], arrays["y"], names)
    (root / "clients.json").write_text(json.dumps(dict(zip(files, arrays["client"].tolist(), strict=True))))
    write_images(root / "test", arrays["x_test"][:50], arrays["y_test"][:50], names)


def federate_folders(root: Path, experiment: Any) -> Any:
    grid = Loopback(experiment)
    for k, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": k, "data": f"folder:{root / str(k)}"}
    return federate(grid, experiment, root / "run")


@pytest.mark.parametrize("names", [WORDS, NUMBERS], ids=["words", "numbers"])
def test_folders_that_lack_classes(
    names: list[str], few: BuiltRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are those of the folders' names in the federation, not of their order on a node."""
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    write_nodes(tmp_path, few, names)
    write_server(tmp_path / "server", few, names)
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"folder:{tmp_path / 'server'}", partition="natural")
    assert_same(federate_folders(tmp_path, experiment), simulate(experiment))


def test_folders_of_numbers_need_no_folder_on_the_server(
    few: BuiltRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "server.npz", **arrays_of(few))
    write_nodes(tmp_path, few, NUMBERS)
    experiment = dataclasses.replace(EXPERIMENT, dataset=f"npz:{tmp_path / 'server.npz'}", partition="natural")
    assert_same(federate_folders(tmp_path, experiment), simulate(experiment))


def test_a_class_that_the_federation_does_not_have_is_named_in_the_log_of_the_node_only(
    few: BuiltRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    write_nodes(tmp_path, few, NUMBERS)
    for half in ("train", "test"):
        write_images(tmp_path / "2" / half, few.dataset.x[:1], [0], ["dog"])
    federate_folders(tmp_path, dataclasses.replace(EXPERIMENT, rounds=1))
    rejected = [record.getMessage() for record in caplog.records if "takes no part" in record.getMessage()]
    assert len(rejected) == 1
    assert rejected[0].startswith("node 102: takes no part: node-config data: 1 of its classes are unknown here")
    assert not any("dog" in path.read_text() for path in tmp_path.rglob("clients.jsonl"))
    assert "no class is called dog; they are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in caplog.text  # of the node's process
