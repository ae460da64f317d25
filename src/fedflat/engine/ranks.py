"""The rank of this process: its number among the processes of a run, which torchrun or SLURM started.

Rank 0 evaluates, prints and writes. The launcher says the rank in environment variables.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from fedflat.errors import UserError, mention

LOOPBACK = "127.0.0.1"


class Rank(NamedTuple):
    """One of the processes of a run.

    Args:
        rank: its number among all processes.
        size: the number of processes.
        local_rank: its number among the processes of its own host, which is also the number of its GPU.
        host: the address at which rank 0 can be reached.
        port: the port there at which the processes meet.
        launcher: the program that started the processes, for messages.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    host: str = LOOPBACK
    port: int = 0
    launcher: str = "this process"

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates, logs and writes."""
        return self.rank == 0


def find_rank(engine: str) -> Rank:
    """Return the rank of this process from the environment variables that torchrun or srun set.

    SLURM is only asked if `engine` is "distributed", since the tasks of a job step may be independent runs.

    Args:
        engine: the experiment's engine. Raises UserError if it does not suit the number of processes.
    """
    this_rank = _torchrun_rank() if "RANK" in os.environ and "WORLD_SIZE" in os.environ else Rank()
    if engine == "distributed" and this_rank.launcher == "this process":
        this_rank = _slurm_rank()
    if engine in ("sequential", "batched") and this_rank.size > 1:
        started = f"trains in one process, {this_rank.launcher} started {this_rank.size}"
        raise UserError("engine", engine, f"{started}; use " + mention("engine", "auto"))
    return this_rank


def _torchrun_rank() -> Rank:
    env = os.environ
    size = int(env["WORLD_SIZE"])
    one_host = env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"]
    host = LOOPBACK if one_host else env.get("MASTER_ADDR", LOOPBACK)
    return Rank(
        int(env["RANK"]), size, int(env.get("LOCAL_RANK", "0")), host, int(env.get("MASTER_PORT", "29500")), "torchrun"
    )


def _slurm_rank() -> Rank:
    """Return the rank of a task of a SLURM job step: `srun` sets these variables, a batch script alone does not."""
    env = os.environ
    if "SLURM_STEP_NUM_TASKS" not in env:
        start = "start it with torchrun --nproc-per-node N -m fedflat … or with srun"
        raise UserError("engine", "distributed", f"{start}; in one process use " + mention("engine", "auto"))
    one_host = env.get("SLURM_STEP_NUM_NODES") == "1"
    host = env.get("MASTER_ADDR", LOOPBACK if one_host else first_slurm_host(env["SLURM_STEP_NODELIST"]))
    step = int(env.get("SLURM_JOB_ID", "0")) + int(env.get("SLURM_STEP_ID", "0"))
    port = int(env.get("MASTER_PORT", 20_000 + step % 10_000))
    rank, size, local_rank = (int(env[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
    return Rank(rank, size, local_rank, host, port, "srun")


def first_slurm_host(hosts: str) -> str:
    """Return the first host of a list in SLURM's notation: node[07-09,12],gpu3 → node07."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", hosts).split(",")[0]


def torchrun_restarts() -> int:
    """Return how often torchrun has restarted the processes of this run (torchrun --max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
