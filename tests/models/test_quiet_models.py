"""Models with operations that torch computes client by client train without torch's request for a rule."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.lstm(x[:, 0])[0][:, -1])
"""


def test_an_lstm_prints_no_warning(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    options = shlex.split("--model net.py:Net --rounds 1 --clients 4 --cohort 2 --local-steps 1 --engine batched")
    command = [sys.executable, "-m", "fedflat", "run", "fedavg", "--out", "run", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "report in" in done.stdout
    assert "Warning" not in done.stderr
