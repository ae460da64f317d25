"""The processes of one run: they meet, send each other tensors and values, and end together.

`join_processes` connects them while a run lasts, `ProcessGroup` has the broadcasts, sums and messages between ranks.
Each process knows its rank (ranks.py) and watches the others (rank_watchdog.py).

All ranks go through the same rounds and hold the same server state. Tensors on a GPU are sent with NCCL, tensors on a
CPU with gloo. A single process uses no network: its sums and broadcasts return what they were given.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedflat.engine.rank_watchdog import RankWatchdog, connect_watchdog
from fedflat.engine.ranks import Rank, torchrun_restarts
from fedflat.errors import UserError, mention

MEETING_TIMEOUT = timedelta(minutes=5)  # for the processes to find each other; a launcher starts them together
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # for a rank that is alive but silent, as others are while rank 0 evaluates
WATCHDOG_GRACE = 0.5  # seconds for the watchdog to name a lost rank, before this process ends because of an error
COLLECTIVE_GRACE = 10.0  # the same after a collective operation failed, most likely because a rank is lost
_group_number = itertools.count()  # runs of this process get different keys in the store


class ProcessGroup:
    """This process among all processes of the run, and their communication.

    Every rank must call the collective functions (all but `set_round`) in the same order.

    Args:
        this_rank: the rank of this process.
        watchdog: what notices a lost rank; None in a single process.
    """

    def __init__(self, this_rank: Rank, watchdog: RankWatchdog | None = None) -> None:
        self.rank, self.size, self.leads = this_rank.rank, this_rank.size, this_rank.leads
        self._watchdog = watchdog

    def set_round(self, round: int) -> None:
        """Remember the round (from 1), for the message about a lost rank."""
        if self._watchdog:
            self._watchdog.round = round

    def broadcast_value(self, make: Callable[[], Any]) -> Any:
        """Call `make` on rank 0 and return its result, which must be representable in JSON, on every rank."""
        if self.size == 1:
            return make()
        text = bytearray(json.dumps(make()).encode()) if self.leads else bytearray()
        length = int(self.broadcast(torch.tensor(len(text))))
        data = torch.frombuffer(text or bytearray(length), dtype=torch.uint8)
        return json.loads(self.broadcast(data).numpy().tobytes())

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with that of rank 0 and return it."""
        if self.size > 1:
            with _grace_on_failure():
                dist.broadcast(tensor, 0)
        return tensor

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with its sum over all ranks, the same bits everywhere, and return it."""
        if self.size > 1:
            with _grace_on_failure():
                dist.all_reduce(tensor)
        return tensor

    def gather_numbers(self, numbers: Sequence[int]) -> Tensor:
        """Return the numbers of all ranks [size, len(numbers)], on every rank."""
        rows = torch.zeros(self.size, len(numbers), dtype=torch.int64)
        rows[self.rank] = torch.tensor(numbers)
        return self.sum_over_ranks(rows)

    def send_and_receive(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        """Send one tensor to each of some ranks and receive one from each of some ranks; either may include this rank.

        Args:
            outgoing: what to send, by receiving rank.
            incoming: tensors of the right shapes, by sending rank; they are overwritten and returned.
        """
        if self.rank in incoming:
            incoming[self.rank].copy_(outgoing[self.rank])
        operations = [dist.P2POp(dist.isend, t, rank) for rank, t in outgoing.items() if rank != self.rank]
        operations += [dist.P2POp(dist.irecv, t, rank) for rank, t in incoming.items() if rank != self.rank]
        if operations:
            with _grace_on_failure():
                for request in dist.batch_isend_irecv(operations):
                    request.wait()
        return incoming


SINGLE_PROCESS = ProcessGroup(Rank())


@contextmanager
def _grace_on_failure() -> Iterator[None]:
    """After a failed operation wait a little: if a rank is lost, the watchdog says so and ends this process."""
    try:
        yield
    except RuntimeError:
        time.sleep(COLLECTIVE_GRACE)
        raise


@contextmanager
def join_processes(this_rank: Rank, device: str) -> Iterator[ProcessGroup]:
    """Connect the processes of a run while the `with` block lasts. An error on one rank ends all others.

    Args:
        this_rank: the rank of this process.
        device: the experiment's device. Raises UserError if this host has no GPU for this process.
    """
    if this_rank.size == 1:
        yield ProcessGroup(this_rank)
        return
    # imported only now, torch._dynamo would keep a reference to the group, whose threads then outlive Python
    importlib.import_module("torch._dynamo")
    backend = _choose_backend(this_rank, device)
    store = dist.PrefixStore(f"fedflat/{torchrun_restarts()}/{next(_group_number)}", _connect_store(this_rank))
    watchdog = connect_watchdog(this_rank, store, COLLECTIVE_TIMEOUT.total_seconds())
    previous = _exit_on_sigterm()
    try:
        dist.init_process_group(
            backend, store=store, rank=this_rank.rank, world_size=this_rank.size, timeout=COLLECTIVE_TIMEOUT
        )
        processes = ProcessGroup(this_rank, watchdog)
        yield processes
        processes.gather_numbers([0])  # wait until every rank has come to its end
        dist.destroy_process_group()
        watchdog.close()
    except BaseException:
        time.sleep(WATCHDOG_GRACE)
        watchdog.fail()
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _exit_on_sigterm() -> Any:
    """Turn SIGTERM into SystemExit, which leaves time to name a lost rank; return the previous handler.

    Returns None, and changes nothing, outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _choose_backend(this_rank: Rank, device: str) -> str:
    """Return torch's backend: NCCL for tensors on GPUs, one GPU for each process of a host, and gloo for the CPU."""
    if ":" in device:
        problem = f"{this_rank.launcher} gives every process a GPU of its own; use " + mention("device", "cuda")
        raise UserError("device", device, problem)
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    gpus = torch.cuda.device_count()
    if this_rank.local_rank >= gpus:
        problem = f"this host has {gpus} GPUs, there is none for process {this_rank.local_rank + 1}"
        raise UserError("device", device, problem)
    torch.cuda.set_device(this_rank.local_rank)
    return "cpu:gloo,cuda:nccl"


@functools.cache
def _connect_store(this_rank: Rank) -> dist.Store:
    """Connect to the store through which processes find each other: torchrun runs one, otherwise rank 0 does."""
    torchrun_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = os.environ.get("MASTER_ADDR", this_rank.host) if torchrun_store else this_rank.host
    port, is_master = this_rank.port, this_rank.leads and not torchrun_store
    try:
        store = _with_timeout(
            lambda: dist.TCPStore(host, port, this_rank.size, is_master=is_master, timeout=MEETING_TIMEOUT)
        )
    except (dist.DistError, TimeoutError) as error:
        raise UserError("engine", "distributed", _why_not_met(host, port, str(error))) from None
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _with_timeout(connect: Callable[[], dist.Store]) -> dist.Store:
    """Return or raise what `connect` does, or raise TimeoutError after MEETING_TIMEOUT.

    If another program listens at the port and never answers, torch waits for ever in spite of its own timeout.
    """
    result = Future[dist.Store]()

    def call() -> None:
        try:
            result.set_result(connect())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return result.result(MEETING_TIMEOUT.total_seconds())


def _why_not_met(host: str, port: int, error: str) -> str:
    if "EADDRINUSE" in error:
        return f"port {port} is in use on {socket.gethostname()}; set MASTER_PORT to a free one"
    seconds = f"{MEETING_TIMEOUT.total_seconds():.0f} s"
    return f"the processes did not meet at {host}:{port} in {seconds}; see what the other processes print"
