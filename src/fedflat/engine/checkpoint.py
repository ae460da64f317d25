"""Tensors in a file, with a checksum and the configuration that they belong to."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedflat.core.state import checksum
from fedflat.engine.configuration import FREE, differences, same_run
from fedflat.errors import UserError


def check_origin(checkpoint: Path, config: str, where: str, free: Collection[str] = FREE) -> None:
    """Refuse a checkpoint of another configuration; one that names none, from earlier versions, is trusted."""
    with safe_open(checkpoint, "pt") as file:
        stored = file.metadata().get("config", "")
    if stored and not same_run(stored, config, free):
        found = "; ".join(differences(stored, config, "checkpoint", free))
        said = f"its checkpoint does not belong to this configuration ({found})"
        raise UserError(f"{where}: {said}; go back to the one that it was trained with")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], config: str = "") -> None:
    """Write tensors, the configuration they belong to and a checksum to a temporary name, then rename."""
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    temporary = path.with_suffix(".tmp")
    try:
        save_file(named, temporary, metadata={"config": config, "crc": str(checksum(named, config))})
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"{path}: cannot be written ({error})") from None


def load_tensors(path: Path) -> dict[str, Tensor] | None:
    """What `save_tensors` wrote, None where the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            known = file.metadata() or {}
            return named if known.get("crc") == str(checksum(named, known.get("config", ""))) else None
    except (SafetensorError, OSError, ValueError):
        return None
