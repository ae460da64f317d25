"""Signs of life in logs: plain lines on stderr, now and then, where there is no terminal for a bar."""

from __future__ import annotations

import sys
import time

from rich.console import Console

SECONDS = 30.0  # between two lines at least


class Pulse:
    """Prints what it is told, at most one line every SECONDS and none before the first have passed."""

    def __init__(self) -> None:
        self._quiet, self._due = Console(stderr=True).is_terminal, time.monotonic() + SECONDS

    def tell(self, line: str) -> None:
        """Print the line if it is time."""
        if not self._quiet and time.monotonic() >= self._due:
            print(line, file=sys.stderr, flush=True)
            self._due = time.monotonic() + SECONDS
