"""Tensors from the host to where training happens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` as a tensor on `device`; a GPU is not waited for."""
    return bring(torch.as_tensor(values, dtype=dtype), device)


def bring(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`; from the host through pinned memory, so that a GPU is not waited for."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
