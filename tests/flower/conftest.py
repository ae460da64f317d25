"""Fixtures of the Flower tests. They need flwr, which limits many packages: make test-flower has an own environment."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from fedflat.runs.folder import RunFolder

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the noise of a simulation instead of the server's secret noise."""
    monkeypatch.setattr("fedflat.flower.server.secrets", SimpleNamespace(randbits=lambda bits: 0))


@pytest.fixture
def tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the traceback limit, which the server's app changes after an error."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture
def crash_in_round(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the server crash when it has all replies of a round, just before the checkpoint."""
    from loopback import Crash

    save, calls = RunFolder.save, []

    def set_round(round: int) -> None:
        def crash(self: RunFolder, tensors: Any) -> None:
            calls.append(1)
            if len(calls) == round:
                raise Crash
            save(self, tensors)

        monkeypatch.setattr(RunFolder, "save", crash)

    return set_round
