"""Ctrl-C while a run trains in a folder: the round under way ends first and is saved; a second one ends at once."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType

WAITING = b"fedflat: interrupted; the round under way ends first and is saved (Ctrl-C again ends at once)\n"


class Patience:
    """Remembers the first Ctrl-C instead of raising it, where Python's own handler would raise it."""

    def __init__(self) -> None:
        self.pressed = False
        main = threading.current_thread() is threading.main_thread()
        self._listens = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> Patience:
        if self._listens:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.pressed and kind is None:
            raise KeyboardInterrupt

    def _press(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.pressed = True
        os.write(2, WAITING)  # print may be busy where the signal came
