"""Training stops at the end of the round in which the deadline passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedflat.reproduce.train import BudgetSpent, progress_watcher


def train_rounds(monkeypatch: pytest.MonkeyPatch, deadline: float) -> list[str]:
    """Twenty rounds of 10 s from time 0, evaluated in every second one; returns the logged lines."""
    now, lines, rows = [0.0], list[str](), list[dict[str, float]]()
    monkeypatch.setattr("fedflat.reproduce.train.time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = progress_watcher("fedsol", 20, deadline, lines.append)
    for number in range(1, 21):
        now[0] += 10
        rows = [{"accuracy": number / 100}] if number % 2 == 0 else rows
        watch(number, rows)
    return lines


def test_progress_is_logged_ten_times(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = train_rounds(monkeypatch, deadline=1000)
    assert len(lines) == 10
    assert lines[0] == "fedsol: round 2 of 20, accuracy 2.0%"


@pytest.mark.parametrize(("deadline", "last"), [(5, 1), (30, 3), (31, 4)])
def test_training_stops_after_the_deadline(monkeypatch: pytest.MonkeyPatch, deadline: float, last: int) -> None:
    with pytest.raises(BudgetSpent, match=f"stopped after round {last};"):
        train_rounds(monkeypatch, deadline)
