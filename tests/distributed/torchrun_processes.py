"""Real processes for tests: torchrun on this machine, over loopback only. Every process is ended with its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def launched(words: Sequence[str], **env: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process and kill it with its children at the end of the block."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENV, **env}, cwd="/"
    )
    try:
        yield process
    finally:
        for pid in [*children(process.pid), process.pid] if process.poll() is None else []:
            _kill(pid)
        process.communicate()


def torchrun(ranks: int, *words: str) -> list[str]:
    """Return the command that starts `words` on so many ranks."""
    return [*TORCHRUN, "--nproc-per-node", str(ranks), *words]


def finish(process: subprocess.Popen[str]) -> str:
    """Wait until the process has succeeded; return what it printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def children(pid: int) -> list[int]:
    """Return the process numbers of the children of a process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def rank_of(pid: int) -> int | None:
    """Return the rank that torchrun gave a process."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return None
    return next((int(word.removeprefix("RANK=")) for word in words if word.startswith("RANK=")), None)


def kill_rank(process: subprocess.Popen[str], rank: int) -> None:
    """Send SIGKILL to one of torchrun's processes."""
    (pid,) = (pid for pid in children(process.pid) if rank_of(pid) == rank)
    os.kill(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
