"""Commands in processes of their own that start at once: they are forked from a process that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from fedflat.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch._inductor", "scipy.stats", "fedflat.cli.train", "fedflat.report.html"])


class ForkedCommand:
    """`fedflat WORDS` in a process of its own.

    Args:
        words: the words.
        folder: where its output is kept.
    """

    def __init__(self, words: list[str], folder: Path) -> None:
        number = len(list(folder.glob("*.stdout")))
        self._printed, self._errors = folder / f"{number}.stdout", folder / f"{number}.stderr"
        for file in (self._printed, self._errors):  # it may be killed before it has opened them
            file.touch()
        self._process = CONTEXT.Process(target=_run, args=(words, self._printed, self._errors))
        self._process.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process.pid
        os.kill(self._process.pid, number)

    def wait(self) -> tuple[int, str, str]:
        """Wait until it has ended; return its exit code, negative for a signal, and what it printed on both streams."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode, self._printed.read_text(), self._errors.read_text()


def _run(words: list[str], printed: Path, errors: Path) -> None:
    """Do what `python -m fedflat` does in a terminal: no signal is ignored, whoever started the tests."""
    os.dup2(os.open(printed, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main(words))
