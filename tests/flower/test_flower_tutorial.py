"""The Flower commands of the last lesson of the tutorial have only options that Flower knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LESSON = Path(__file__).parents[2] / "docs" / "tutorial" / "9-real-federation.md"


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_options_exist(program: str) -> None:
    text = LESSON.read_text(encoding="utf-8").replace("\\\n", " ")
    command = re.search(rf"^{program} .*$", text, re.M)
    assert command is not None
    script = Path(sys.executable).with_name(program)
    shown = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r"--[a-z-]+", command[0])
    assert len(options) > 4
    assert [option for option in options if option not in re.findall(r"--[a-z-]+", shown)] == []
