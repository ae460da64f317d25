"""Where the time of a command goes: python benchmarks/timeline.py run fedavg --rounds 1.

Looks at the stack of the main thread every 4 ms. Prints, in order of time, what fedflat was doing and what it had
called, for pieces of at least 30 ms, then the functions in which most of the time passed. What comes after
`timeline.py` are the words after `fedflat`. `TIMELINE_OUT=FILE` writes to a file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

INTERVAL, SHORTEST, FUNCTIONS = 0.004, 0.03, 40
OWN = Path(find_spec("fedflat").origin or "").parent  # type: ignore[union-attr]


class Sample(NamedTuple):
    """A moment, and the functions under way, the innermost first, as FILE:FUNCTION; ours as fedflat/FILE:FUNCTION."""

    time: float
    stack: list[str]


class Sampler:
    """Samples the main thread from its creation until `stop`."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._main, self._stopped = threading.main_thread().ident, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(INTERVAL):
            frame = sys._current_frames().get(self._main or 0)
            self.samples.append(Sample(time.time(), functions_of(frame)))

    def stop(self) -> list[Sample]:
        """Return what was sampled; the last sample has no functions."""
        self._stopped.set()
        self._thread.join()
        return [*self.samples, Sample(time.time(), [])]


def functions_of(frame: FrameType | None) -> list[str]:
    """The functions of a stack, without those of Python's import system."""
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith("<frozen"):
            path = Path(code.co_filename)
            own = path.is_relative_to(OWN)
            place = path.relative_to(OWN.parent if own else path.parent.parent)
            found.append(f"{place}:{code.co_qualname}")
        frame = frame.f_back
    return found


def what(stack: list[str]) -> str:
    """The innermost function of fedflat, and the next two that it had called."""
    own = next((place for place, name in enumerate(stack) if name.startswith("fedflat/")), len(stack))
    called = " < ".join(stack[max(0, own - 2) : own][::-1])
    return f"{stack[own] if own < len(stack) else '-'}  {called}"


def report(samples: list[Sample], begin: float) -> list[str]:
    """The lines of the timeline, and of the functions with most time."""
    pieces: list[tuple[float, float, str]] = []
    inclusive: Counter[str] = Counter()  # seconds
    for (start, stack), (end, _) in pairwise(samples):
        for name in set(stack):
            inclusive[name] += end - start
        doing = what(stack)
        if pieces and pieces[-1][2] == doing:
            start, _, _ = pieces.pop()
        pieces.append((start, end, doing))
    long = [f"{a - begin:7.2f} s  +{b - a:5.2f}  {doing}" for a, b, doing in pieces if b - a >= SHORTEST]
    most = [f"{seconds:7.2f} s  {name}" for name, seconds in inclusive.most_common(FUNCTIONS)]
    return [*long, "", "in all:", *most, f"{samples[-1].time - begin:7.2f} s  the command"]


def main() -> None:
    """Run the command and print where its time went."""
    begin, sampler = time.time(), Sampler()
    from fedflat.cli import main as run_command

    try:
        code = run_command(sys.argv[1:])
    finally:
        text = "\n".join(report(sampler.stop(), begin)) + "\n"
        if out := os.environ.get("TIMELINE_OUT"):
            Path(out).write_text(text)
        else:
            sys.stderr.write(text)
    sys.exit(code)


if __name__ == "__main__":
    main()
