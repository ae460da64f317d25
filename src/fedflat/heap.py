"""Memory that a step on a CPU frees and the next one needs again."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's names for what mallopt sets: M_TRIM_THRESHOLD, M_MMAP_MAX


def keep_freed_memory() -> None:
    """Let the C library keep what this process frees instead of giving it back to the system at once.

    glibc maps every block above 32 MB anew, and the system clears its pages one by one. In a step with a model of
    millions of parameters that takes as long as the arithmetic. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
