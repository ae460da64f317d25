"""clients.jsonl has the fields that the reference lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedflat.flower.nodes import ClientLog

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"


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
