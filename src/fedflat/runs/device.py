"""The device on which an experiment is trained, and the precision of its arithmetic."""

from __future__ import annotations

import torch

from fedflat.errors import UserError, mention


def choose_device(name: str) -> torch.device:
    """Return the device that the option `device` means; raise UserError if it is not there."""
    kind, _, number = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device", name, f"no usable GPU here; use {mention('device', 'cpu')} or auto")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device", name, f"no Apple GPU that torch can use here; use {mention('device', 'cpu')} or auto")
    if number:
        return _numbered_gpu(name, int(number))
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if kind == "auto" else kind)


def _numbered_gpu(name: str, number: int) -> torch.device:
    """The GPU of this number, which becomes torch's current one; UserError if it is not there."""
    if number >= torch.cuda.device_count():
        raise UserError("device", name, f"this host has {torch.cuda.device_count()} GPUs, numbered from 0")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def set_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Make torch use the precision that the option `precision` means.

    Returns the type in which models compute, None if it is that of the parameters (float32).
    """
    if name == "tf32" and device.type != "cuda":
        raise UserError("precision", name, "only GPUs have it; use fp32 or auto")
    tf32 = device.type == "cuda" and name in ("auto", "tf32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
