"""The table of wrong changes fits the source: every text is there exactly once, and every test file exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_mutants import chosen_numbers
from table import MUTANTS, Mutant

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{n}-{mutant.file}" for n, mutant in enumerate(MUTANTS)])
def test_a_change_can_be_planted(mutant: Mutant) -> None:
    text = (TESTS.parent / "src" / "fedflat" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: adapt its entry in tests/mutants/changes.txt"
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert mutant.old != mutant.new
    assert all((TESTS / name).is_file() for name in mutant.tests.split())


def test_changes_are_chosen_by_number_range_and_word() -> None:
    assert chosen_numbers([]) == list(range(len(MUTANTS)))
    assert chosen_numbers(["3", "5-7", "9999"]) == [3, 5, 6, 7]
    assert chosen_numbers(["krum"]) == [n for n, mutant in enumerate(MUTANTS) if "krum" in " ".join(mutant)]
