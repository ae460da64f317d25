"""make soak MINUTES=30: kill runs and feed wrong input until the time is over; print kills, cases and failures.

Every scenario and case is drawn from a seed that is printed with a failure: --seed S --only kill-17 plays it again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from fuzz_inputs import FuzzSuite
from kill_runs import KillSuite

CASES_PER_SCENARIO = 20


def main() -> int:
    """Play until the time or the numbers are used up; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--scenarios", type=int, default=10**9, help="killed runs at most")
    parser.add_argument("--cases", type=int, default=10**9, help="cases of wrong input at most")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="play one scenario or case, such as kill-17 or case-3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills, fuzz = KillSuite(Path(folder)), FuzzSuite(Path(folder))
        failures = play(kills, fuzz, options)
        counts = f"{kills.kills} kills, {kills.compared} folders compared, {fuzz.cases} cases, {failures} failures"
        print(f"seed {options.seed}: {counts}", flush=True)
    return int(failures > 0)


def play(kills: KillSuite, fuzz: FuzzSuite, options: argparse.Namespace) -> int:
    """Play one scenario, then some cases, and so on; return the number of failures, each of which is printed."""
    ends, told, failures = time.monotonic() + 60 * options.minutes, time.monotonic(), 0
    for number in itertools.count():
        kind = "kill" if number % (CASES_PER_SCENARIO + 1) == 0 else "case"
        over = kills.compared >= options.scenarios if kind == "kill" else fuzz.cases >= options.cases
        done = kills.compared >= options.scenarios and fuzz.cases >= options.cases
        if done or time.monotonic() > ends or (options.only and failures + kills.compared + fuzz.cases):
            return failures
        name = options.only or f"{kind}-{number}"
        if over and not options.only:
            continue
        try:
            (kills if name.startswith("kill") else fuzz).play(f"{options.seed}-{name}")
        except Exception:
            failures += 1
            print(f"failed: --seed {options.seed} --only {name}\n{traceback.format_exc()}", flush=True)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{kills.kills} kills, {fuzz.cases} cases, {failures} failures so far", flush=True)
    raise AssertionError


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
