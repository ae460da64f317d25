"""clients.jsonl has the fields that the reference lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedflat.flower.nodes import ClientLog

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"


def test_what_a_node_says_forges_no_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reasons of failures and names of arrays come from nodes: they could hold lines, or commands of a terminal."""
    log, job = ClientLog(tmp_path / "clients.jsonl", "run"), SimpleNamespace(round=0, exchange=0)
    said, first = "late\nround 2: accuracy 99%\x1b[2J\u202e" + "x" * 10**6, cast(Any, job)
    log.client_asked(first, 1, "client 1", accepted=False, examples=3, norm=0.5, note=said)
    log.node_rejected(7, said)
    notes = [json.loads(line)["note"] for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    for text in (*notes, *(record.getMessage() for record in caplog.records)):
        assert text.isprintable()
        assert "late round 2: accuracy 99% [2J" in text
        assert len(text) < 600
    assert len(caplog.records) == 2


def test_fields(tmp_path: Path) -> None:
    log, job = ClientLog(tmp_path / "clients.jsonl", "run"), SimpleNamespace(round=0, exchange=0)
    first: Any = job
    log.client_asked(first, 1, "client 1", accepted=False, examples=3, norm=0.5, note="late")
    log.node_rejected(7, "no data")
    log.node_replaced(1, 7, 8)
    log.reply_clipped(first, 1, 0.5)
    rows = [json.loads(line) for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    table = PAGE.read_text(encoding="utf-8").partition("\n## clients.jsonl\n")[2]
    assert {name for row in rows for name in row} == set(re.findall(r"^\| `(\w+)`", table, re.M))
