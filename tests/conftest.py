"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Use Python's handler of Ctrl-C also where a shell started the tests in the background, and so ignores it.

    Programs that the tests start inherit what is ignored, and could not be ended by Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
