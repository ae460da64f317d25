"""Small tensors from the host to where training happens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` as a tensor on `device`; a GPU is not waited for."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
