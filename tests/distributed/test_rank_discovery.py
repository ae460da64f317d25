"""Ranks under torchrun and SLURM, refused combinations, and a rank that fails or cannot meet the others."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

sys.path.append(str(Path(__file__).parent))

from torchrun_processes import launched

from fedflat.cli import main
from fedflat.engine.rank_watchdog import connect_watchdog
from fedflat.engine.ranks import Rank, find_rank, first_slurm_host

SMALL = ["--rounds", "2", "--cohort", "2", "--local-epochs", "1", "--model", "mlp"]


def set_env(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "MASTER_"))]:
        monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def slurm(rank: int, size: int, **more: str) -> dict[str, str]:
    ranks = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 4), "SLURM_STEP_NUM_TASKS": str(size)}
    return {**ranks, "SLURM_STEP_NODELIST": "gpu[07-09,12],old3", "SLURM_STEP_NUM_NODES": "4", **more}


def test_torchrun_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_env(
        monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", MASTER_ADDR="h", MASTER_PORT="9"
    )
    assert find_rank("auto") == find_rank("distributed") == Rank(5, 8, 1, "h", 9, "torchrun")


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    set_env(monkeypatch, **slurm(6, 16, SLURM_JOB_ID="123456", SLURM_STEP_ID="2"))
    assert find_rank("distributed") == Rank(6, 16, 2, "gpu07", 20_000 + 3458, "srun")
    assert find_rank("auto") == Rank()  # tasks of a job step may well be runs of their own


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[3-5]", "n3"), ("a[01,7]b,c", "a01b"), ("r[1-2]n[3-4]", "r1n3")],
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_slurm_host(hosts) == first


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ("run fedavg --engine batched", "2", "--engine batched: trains in one process, torchrun started 2"),
        ("compare fedavg fedsam", "2", "compare: trains in one process"),
        ("run fedavg --engine distributed", "", "--engine distributed: start it with torchrun"),
    ],
)
def test_engines_that_do_not_suit_the_processes(
    words: str, size: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path
) -> None:
    set_env(monkeypatch, **({"RANK": "0", "WORLD_SIZE": size} if size else {}))
    assert main([*words.split(), *SMALL, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_connections_without_the_token_are_closed() -> None:
    """A program that connects to rank 0 without the token does not count as a rank."""
    store = dist.HashStore()
    leader = threading.Thread(target=lambda: connect_watchdog(Rank(0, 2), store, 60).close())
    leader.start()
    port = int(store.get("watchdog").decode().split()[0])
    with socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(b"0" * 32 + b"        1")
        assert other.recv(1) == b""
    connect_watchdog(Rank(1, 2), store, 60).close()
    leader.join()


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    """Of two tasks of a SLURM step the second does not find its data."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = [slurm(rank, 2, SLURM_STEP_NUM_NODES="1", MASTER_PORT=port) for rank in range(2)]
    words = [sys.executable, "-m", "fedflat", "run", "fedavg", *SMALL, "--engine", "distributed"]
    with (
        launched([*words, "--out", str(tmp_path / "run")], **env[0]) as first,
        launched([*words, "--dataset", "npz:/nowhere.npz"], **env[1]) as second,
    ):
        messages = [process.communicate(timeout=300)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (1, 2)
    assert messages[0].startswith("fedflat: rank 1 failed before the first round"), messages[0]
    assert messages[0].count("\n") == messages[1].count("\n") == 1, messages
    assert "/nowhere.npz" in messages[1]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


SHORT_TIMEOUT = """
import datetime, sys
from fedflat.cli import main
from fedflat.engine import processes
processes.MEETING_TIMEOUT = datetime.timedelta(seconds=5)
sys.exit(main(sys.argv[1:]))
"""


def test_a_port_in_use() -> None:
    """Another program accepts the connections of both tasks of a SLURM step and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        env = [slurm(rank, 2, SLURM_STEP_NUM_NODES="1", MASTER_PORT=str(port)) for rank in range(2)]
        words = [sys.executable, "-c", SHORT_TIMEOUT, "run", "fedavg", *SMALL, "--engine", "distributed"]
        with launched(words, **env[0]) as first, launched(words, **env[1]) as second:
            messages = [process.communicate(timeout=120)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (2, 2), messages
    assert f"port {port} is in use on {socket.gethostname()}; set MASTER_PORT to a free one" in messages[0]
    assert f"the processes did not meet at 127.0.0.1:{port} in 5 s" in messages[1]
    assert messages[0].count("\n") == messages[1].count("\n") == 1, messages
