"""The time of a group is foreseen from its first rounds; what would not end in time gives way to others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fedflat.reproduce.train import BudgetSpent, ReproduceRequest, TimeBudget, TooLong

Play = Callable[..., list[str]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Eight of 100 rounds, from time 0: three of 100 s, in which all is slow once, and five of 10 s. What was said."""

    def rounds(deadline: float, others: bool) -> list[str]:
        now, said = [0.0], []
        monkeypatch.setattr("fedflat.reproduce.train.time", SimpleNamespace(monotonic=lambda: now[0]))
        watch = TimeBudget("fedsol", 100, ReproduceRequest(deadline=deadline), said.append, others)
        for number in range(1, 9):
            now[0] += 100 if number <= 3 else 10
            watch(number, [])
        return said

    return rounds


@pytest.mark.parametrize(("deadline", "others"), [(2000, True), (1000, False)])
def test_a_group_that_ends_in_time_or_has_no_others_goes_on(play: Play, deadline: float, others: bool) -> None:
    """92 rounds of 10 s are left."""
    assert play(deadline, others) == ["fedsol: about 15 min more"]


def test_a_group_that_would_not_end_in_time_gives_way(play: Play) -> None:
    with pytest.raises(TooLong, match="put off, 11 min left"):
        play(1000, others=True)


def test_a_spent_budget_ends_it(play: Play) -> None:
    with pytest.raises(BudgetSpent, match="stopped in round 3"):
        play(300, others=False)
