"""Ctrl-C, SIGTERM and SIGHUP end a command in the same way; during training the round under way is saved first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

INTERRUPT_NOTICE = b"fedflat: interrupted; the round under way ends first and is saved (a second time ends at once)\n"


class Interrupted(KeyboardInterrupt):
    """A command was stopped by a signal; `exit_code` is 130 for Ctrl-C, 143 for the others."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 130 if number == signal.SIGINT else 143


def raise_interrupted(number: int, frame: object) -> None:
    """Handle a signal by raising Interrupted."""
    raise Interrupted(number)


_USUAL: dict[int, tuple[Any, ...]] = {  # handlers in whose place a training may put its own
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL, raise_interrupted),
    signal.SIGHUP: (signal.SIG_DFL, raise_interrupted),
}


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise Interrupted inside the block, in the main thread and where nobody handles them."""
    main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, raise_interrupted)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class InterruptAfterRound:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP only sets `signal`. The second one ends as usual.

    Schedulers such as Slurm send SIGTERM some time before they kill a job. Signals that somebody else handles are left
    alone, and so are all in threads other than the main one.

    Args:
        active: False to leave all signals alone.
    """

    def __init__(self, active: bool = True) -> None:
        self.signal = 0  # the signal's number, 0 if none has come
        main = active and threading.current_thread() is threading.main_thread()
        now = {number: signal.getsignal(number) for number in _USUAL}
        self._handlers = {n: handler for n, handler in now.items() if main and handler in _USUAL[n]}

    def __enter__(self) -> InterruptAfterRound:
        for number in self._handlers:
            signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if self.signal and kind is None:
            raise Interrupted(self.signal)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self._restore()
        self.signal = number
        os.write(2, INTERRUPT_NOTICE)  # print is not safe in a signal handler
