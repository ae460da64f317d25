"""These tests need flwr, which caps many packages: make test-flower runs them in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
