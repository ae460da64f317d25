"""Where this process stands among those that train together, as torchrun or SLURM tells it in environment variables."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from fedflat.errors import UserError

LOOPBACK = "127.0.0.1"


class Place(NamedTuple):
    """One of `size` processes: number `rank` of all, number `local` on its own host; rank 0 is at `host`."""

    rank: int = 0
    size: int = 1
    local: int = 0
    host: str = LOOPBACK
    port: int = 0
    launcher: str = "this process"

    @property
    def leads(self) -> bool:
        """Rank 0 evaluates, logs and writes."""
        return self.rank == 0


def find_place(engine: str) -> Place:
    """This process's place; raises UserError where it does not fit --engine."""
    place = _torchrun() if "RANK" in os.environ and "WORLD_SIZE" in os.environ else Place()
    if engine == "distributed" and place.launcher == "this process":
        place = _slurm()
    if engine in ("sequential", "batched") and place.size > 1:
        raise UserError(f"--engine {engine}: trains in one process, {place.launcher} started {place.size}; use auto")
    return place


def _torchrun() -> Place:
    env = os.environ
    size = int(env["WORLD_SIZE"])
    one_host = env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"]
    host = LOOPBACK if one_host else env.get("MASTER_ADDR", LOOPBACK)
    return Place(
        int(env["RANK"]), size, int(env.get("LOCAL_RANK", "0")), host, int(env.get("MASTER_PORT", "29500")), "torchrun"
    )


def _slurm() -> Place:
    """A task of a job step; `srun` sets these variables, a batch script alone does not have them."""
    env = os.environ
    if "SLURM_STEP_NUM_TASKS" not in env:
        raise UserError(
            "--engine distributed: start it with torchrun --nproc-per-node N -m fedflat … or with srun; "
            "in one process use auto"
        )
    one_host = env.get("SLURM_STEP_NUM_NODES") == "1"
    host = env.get("MASTER_ADDR", LOOPBACK if one_host else first_host(env["SLURM_STEP_NODELIST"]))
    step = int(env.get("SLURM_JOB_ID", "0")) + int(env.get("SLURM_STEP_ID", "0"))
    port = int(env.get("MASTER_PORT", 20_000 + step % 10_000))
    rank, size, local = (int(env[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
    return Place(rank, size, local, host, port, "srun")


def first_host(hosts: str) -> str:
    """The first of SLURM's list of hosts: node[07-09,12],gpu3 → node07."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", hosts).split(",")[0]


def restarts() -> int:
    """How often torchrun has started these processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
