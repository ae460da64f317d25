"""The checkpoint of a run, checkpoint/state.safetensors: tensors with a checksum, and what they belong to.

Its metadata hold the configuration that was trained and the fingerprint of the data set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedflat.core.state import checksum
from fedflat.files import replace_file
from fedflat.runs.config import MAY_CHANGE, config_differences, growing_options, same_run


def checkpoint_mismatch(
    checkpoint: Path, config: str, ignored: Collection[str] = MAY_CHANGE, may_grow: Collection[str] = ()
) -> str:
    """Return why a checkpoint does not belong to a configuration, '' if it does.

    A checkpoint of an early version, which does not name its configuration, belongs to any.

    Args:
        checkpoint: the file.
        config: the configuration.
        ignored: options that may differ.
        may_grow: options that may have grown since, of MAY_GROW.
    """
    stored = checkpoint_config(checkpoint)
    ignored = (*ignored, *growing_options(stored, config, may_grow, trained_rounds(checkpoint)))
    if not stored or same_run(stored, config, ignored):
        return ""
    differences = "; ".join(config_differences(stored, config, "checkpoint", ignored))
    return (
        f"its checkpoint does not belong to this configuration ({differences}); "
        "go back to the one that it was trained with"
    )


def checkpoint_config(checkpoint: Path) -> str:
    """Return the configuration in a checkpoint's metadata, '' if there is none."""
    return _checkpoint_metadata(checkpoint).get("config", "")


def data_changed(checkpoint: Path, fingerprint: str) -> bool:
    """Return whether a checkpoint was trained on data with another fingerprint; False where one is not known."""
    stored = _checkpoint_metadata(checkpoint).get("data", "")
    return bool(stored and fingerprint) and stored != fingerprint


def _checkpoint_metadata(checkpoint: Path) -> dict[str, str]:
    try:
        with safe_open(checkpoint, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def trained_rounds(checkpoint: Path) -> int:
    """Return the round of a checkpoint, 0 if there is none or it is damaged."""
    try:
        with safe_open(checkpoint, "pt") as file:
            return int(file.get_tensor("counters")[0])
    except (SafetensorError, OSError, ValueError, IndexError):
        return 0


def trained_seeds(names: Iterable[str]) -> list[int]:
    """Return the seeds in a checkpoint, given the names of its tensors."""
    return sorted({int(name.split(".")[1]) for name in names if name.startswith("trial.")})


_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}  # as safetensors names them


def save_tensors(path: Path, tensors: Mapping[str, Tensor], config: str = "", data: str = "") -> None:
    """Write a safetensors file with a checksum in its metadata, replacing it as a whole.

    Args:
        path: the file.
        tensors: the tensors by name.
        config: the configuration that they belong to, for the metadata.
        data: the fingerprint of the data set, for the metadata.
    """
    named = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"config": config, "data": data, "crc": str(checksum(named, config + data))}
    try:
        with replace_file(path) as file:
            _write_safetensors(file, named, metadata)
    except OSError as error:
        raise OSError(f"{path}: cannot be written ({error.strerror or error})") from None


def _write_safetensors(file: BinaryIO, named: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the header, then the tensors, the widest numbers first so that all are aligned; nothing is copied."""
    ordered = sorted(named, key=lambda name: (-named[name].element_size(), name))
    ends = list(accumulate((named[name].nbytes for name in ordered), initial=0))
    entries = {
        name: {"dtype": _DTYPES[named[name].dtype], "shape": list(named[name].shape), "data_offsets": [start, end]}
        for name, (start, end) in zip(ordered, pairwise(ends), strict=True)
    }
    header = json.dumps({"__metadata__": dict(metadata), **entries}).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    for name in ordered:
        file.write(named[name].reshape(-1).view(torch.uint8).numpy().data)


def load_tensors(path: Path) -> dict[str, Tensor] | None:
    """Return what `save_tensors` wrote, None if the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
            text = metadata.get("config", "") + metadata.get("data", "")
            return named if metadata.get("crc") == str(checksum(named, text)) else None
    except (SafetensorError, OSError, ValueError):
        return None


def trial_tensors(checkpoint: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return the tensors of one seed in a checkpoint, with the names of `Trial.pack`."""
    prefix = f"trial.{seed}."
    return {name.removeprefix(prefix): tensor for name, tensor in checkpoint.items() if name.startswith(prefix)}
