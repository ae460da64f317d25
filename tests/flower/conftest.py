"""These tests need flwr, which caps many packages: make test-flower runs them in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from fedflat.runs.folder import RunFolder

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise as in a simulation instead of the server's secret."""
    monkeypatch.setattr("fedflat.flower.server.secrets", SimpleNamespace(randbits=lambda bits: 0))


@pytest.fixture
def crash_in_round(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the server die when all replies of a round are in, just before its checkpoint."""
    from loopback import Crash

    save, calls = RunFolder.save, []

    def arm(round: int) -> None:
        def dying(self: RunFolder, tensors: Any) -> None:
            calls.append(1)
            if len(calls) == round:
                raise Crash
            save(self, tensors)

        monkeypatch.setattr(RunFolder, "save", dying)

    return arm
