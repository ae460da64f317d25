"""Where and when something was measured."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch


def describe() -> dict[str, Any]:
    """Date, hardware and the load of the last minute."""
    return {
        "date": date.today().isoformat(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }


def _cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
