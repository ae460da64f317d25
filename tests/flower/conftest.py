"""These tests need flwr, which caps many packages: make test-flower runs them in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise as in a simulation instead of the server's secret."""
    monkeypatch.setattr("fedflat.flower.server.secrets", SimpleNamespace(randbits=lambda bits: 0))
