"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take the usual handlers of Ctrl-C and of hang-ups where a shell or nohup, which started the tests, ignores them.

    Programs that the tests start inherit what is ignored, and could not be ended so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
