"""Settings for small runs and quick measurements, and functions that change the files of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from fedflat.core.state import checksum
from fedflat.flatness.finished_run import AnalysisSettings

SMALL = {"model": "mlp", "clients": 6, "cohort": 3, "local_epochs": 1, "lr": 0.1, "device": "cpu"}
QUICK = "--samples 30 --grid 4 --draws 4 --probes 2 --ascent-steps 2 --top 3"


def quick(*what: str, **more: object) -> AnalysisSettings:
    values = {"samples": 30, "grid": 4, "draws": 4, "probes": 2, "ascent_steps": 2, "top": 3, **more}
    return AnalysisSettings(what=what, **values)  # type: ignore[arg-type]


def read(run: Path, what: str) -> dict:
    return json.loads((run / "analysis" / f"{what}.json").read_text())


def change_tensors(run: Path, change) -> None:
    path = run / "checkpoint" / "state.safetensors"
    named = {name: change(name, tensor) for name, tensor in load_file(path).items()}
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    save_file(named, path, metadata={"crc": str(checksum(named))})


def edit(run: Path, old: str, new: str) -> None:
    config = run / "config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
