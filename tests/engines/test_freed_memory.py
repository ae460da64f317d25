"""Freed memory stays with the process: counted in memory pages that the system had to provide again."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, torch
from fedflat.engine.memory import keep_freed_memory
{call}
def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(30):  # until freed blocks are large enough
    pages()
print(min(pages() for _ in range(3)))
"""


def _pages(call: str) -> int:
    """Return the page faults of filling 64 MB once more, the least of three times."""
    done = subprocess.run([sys.executable, "-c", COUNT.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns large blocks at once")
def test_large_blocks_are_reused():
    assert _pages("") > 20  # whole huge pages at best
    assert _pages("keep_freed_memory()") < 10


def test_other_systems_are_left_alone(monkeypatch):
    from fedflat.engine import memory

    monkeypatch.setattr(memory.sys, "platform", "win32")
    memory.keep_freed_memory()
