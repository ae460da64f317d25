"""Ctrl-C, SIGTERM and SIGHUP during training: the round under way ends first and is saved."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType

INTERRUPT_NOTICE = b"fedflat: interrupted; the round under way ends first and is saved (a second time ends at once)\n"


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after a round that is saved; `exit_code` is 130 for Ctrl-C, 143 for the others."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 130 if number == signal.SIGINT else 143


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
        usual = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
        known = {getattr(signal, name): handler for name, handler in usual.items() if hasattr(signal, name)}
        self._handlers = {n: handler for n, handler in known.items() if main and signal.getsignal(n) is handler}

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
