"""A small part of make soak, with a fixed seed: killed runs end like others, and wrong input is refused in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_kills_and_wrong_input() -> None:
    amount = ["--scenarios", "6", "--cases", "120", "--seed", "7"]
    words = [sys.executable, str(Path(__file__).with_name("soak.py")), *amount]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"seed 7: \d+ kills, 6 folders compared, 120 cases, 0 failures", last), done.stdout
    assert int(last.split()[2]) >= 10
