"""Plant the wrong changes of changes.txt one at a time and count those that the tests notice.

    python tests/mutants/run_mutants.py               all of them
    python tests/mutants/run_mutants.py 12 40-45      some by number
    python tests/mutants/run_mutants.py runs/ krum    those whose file or text contains a word

The source is copied to a temporary folder and changed there. Each change runs only the tests that are named beside it,
in a process of its own; they pass on the unchanged source. Exit code 1 if a change survives.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PRELOADED = ["torch", "torch.func", "scipy.stats", "hypothesis", "pytest"]  # imported once, in the parent of all tests
CAUGHT = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}  # a change may break the import of a test file
LIMIT = 300  # seconds after which tests are taken to hang


def chosen_numbers(words: list[str]) -> list[int]:
    """Return the numbers of the changes that any of the words means: a number, a range, or a part of their text."""
    ranges = [re.fullmatch(r"(\d+)(?:-(\d+))?", word) for word in words]
    numbers = {n for m in ranges if m for n in range(int(m[1]), int(m[2] or m[1]) + 1)}
    texts = [word for word, m in zip(words, ranges, strict=True) if not m]
    found = {n for n, mutant in enumerate(MUTANTS) if any(text in " ".join(mutant) for text in texts)}
    return sorted(numbers & {*range(len(MUTANTS))} | found) if words else [*range(len(MUTANTS))]


def run_tests(source: Path, mutant: Mutant) -> None:
    """Run the tests of a change on the changed source, in a process of their own, and exit with pytest's code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}  # of processes that tests start
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True  # compiled files of one change could be taken for those of the next
    files = [f"tests/{name}" for name in mutant.tests.split()]
    only = ["-k", mutant.only] if mutant.only else []
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *only, *files]))


def is_caught(source: Path, mutant: Mutant) -> bool:
    """Plant one change, run its tests and take the change back. Tests that hang have noticed it."""
    file = source / "fedflat" / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has not exactly one: {mutant.old}"
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    process = multiprocessing.get_context("forkserver").Process(target=run_tests, args=(source, mutant))
    try:
        process.start()
        process.join(LIMIT)
        if process.exitcode is None:
            process.kill()
            process.join()
            return True
    finally:
        file.write_text(text, encoding="utf-8")
    if process.exitcode not in (pytest.ExitCode.OK, *CAUGHT):
        raise SystemExit(f"the tests {mutant.tests} {mutant.only} cannot be run (exit code {process.exitcode})")
    return process.exitcode in CAUGHT


def can_run(mutant: Mutant) -> bool:
    """Return whether what the tests need is installed: those of flower/ need Flower."""
    return not mutant.file.startswith("flower/") or find_spec("flwr") is not None


def without_changes(chosen: dict[int, Mutant]) -> dict[int, Mutant]:
    """Return changes that change nothing, one for all that have the same tests."""
    by_tests = {(mutant.tests, mutant.only): number for number, mutant in reversed(chosen.items())}
    return {number: chosen[number]._replace(new=chosen[number].old) for number in sorted(by_tests.values())}


def main() -> int:
    """Run the chosen changes and print a line about each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="numbers, ranges or parts of the text; all if none is given")
    parser.add_argument("--unchanged", action="store_true", help="plant nothing and see that the tests pass")
    options = parser.parse_args()
    chosen = {number: MUTANTS[number] for number in chosen_numbers(options.words)}
    runnable = {number: mutant for number, mutant in chosen.items() if can_run(mutant)}
    planted = without_changes(runnable) if options.unchanged else runnable
    names, caught = (("passed", "FAILED") if options.unchanged else ("SURVIVED", "caught")), 0
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for number, mutant in planted.items():
            began, noticed = time.perf_counter(), is_caught(source, mutant)
            caught += noticed
            change = mutant.tests if options.unchanged else f"{mutant.file}: {mutant.old} → {mutant.new}"
            seconds, line = time.perf_counter() - began, " ".join(change.split())
            print(f"{number:3} {names[noticed]:8} {seconds:5.1f} s  {line}", flush=True)
    skipped = f"; {len(chosen) - len(runnable)} need Flower and were left out" if len(chosen) > len(runnable) else ""
    print(f"{caught} of {len(planted)} {names[1]}{skipped}")
    return 1 if caught != (0 if options.unchanged else len(planted)) else 0


if __name__ == "__main__":
    sys.exit(main())
