"""The processes of one run, started by torchrun or SLURM.

Each process has a number, its *rank* (0, 1, …); rank 0 evaluates, prints and writes. This file has three parts:

    Rank, find_rank               which of the processes this one is, read from the launcher's environment variables
    RankWatchdog                  ends this process when another one dies or fails
    ProcessGroup, join_processes  broadcasts, sums and messages between the ranks while a run lasts

Why a watchdog: a collective operation may wait for a dead process for ever, whereas the kernel closes the connections
of a dead process at once, on every host and with every backend. Therefore each rank keeps one connection to rank 0 and
sends a single byte over it, at its end: DONE after a successful run, FAILED after an error that it has already printed.
A connection that closes without a byte belonged to a process that was killed.

All ranks go through the same rounds and hold the same server state. Tensors on a GPU are sent with NCCL, tensors on a
CPU with gloo. A single process uses no network: its sums and broadcasts return what they were given.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import re
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

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


DONE, FAILED, KILLED = b".", b"!", b""  # the last byte of a connection; KILLED: it closed without one


class RankWatchdog:
    """Watches the connections to other ranks in a thread, and ends this process when one of them is lost.

    Args:
        rank: the number of this process.
        peers: open connections by rank: on rank 0 to all other ranks, on the others to rank 0.
    """

    def __init__(self, rank: int, peers: Mapping[int, socket.socket]) -> None:
        self.rank, self.round = rank, 0
        self._peers, self._failing = dict(peers), False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the peers that this rank is done, and wait until they are done as well."""
        self._send_last(DONE)
        self._thread.join()

    def fail(self) -> None:
        """Tell the peers to end as well. Call it after an error that this rank prints."""
        self._failing = True
        self._send_last(FAILED, socket.SHUT_RDWR)  # also wakes the thread
        self._thread.join()

    def _send_last(self, last: bytes, how: int = socket.SHUT_WR) -> None:
        for peer in self._peers.values():
            with suppress(OSError):  # the peer has ended already
                peer.sendall(last)
                peer.shutdown(how)

    def _watch(self) -> None:
        """Read the last byte of every peer; end this process if one of them is not DONE."""
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                ended = {key.data: _last_byte(selector, key.fileobj) for key, _ in selector.select()}
                if self._failing:
                    return
                lost = {rank: last for rank, last in ended.items() if last != DONE}
                if lost:
                    # name a killed rank first: the failed ones may have failed because of it
                    rank = min(lost, key=lambda rank: (lost[rank] == FAILED, rank))
                    self._end_process(rank, lost[rank] == FAILED)

    def _end_process(self, lost: int, failed: bool) -> None:
        """End this process because rank `lost` was killed or `failed`; one of the remaining ranks prints which."""
        if self.rank == 0 or (self.rank == 1 and not failed):
            when = f"in round {self.round}" if self.round else "before the first round"
            print(
                f"fedflat: rank {lost} {'failed' if failed else 'died'} {when}; a run with an output folder can "
                "continue from its last checkpoint (resume it, or start it with torchrun --max-restarts)",
                file=sys.stderr,
                flush=True,
            )
        self._send_last(FAILED)
        os._exit(1)  # the main thread may be waiting for the lost rank


def _last_byte(selector: selectors.BaseSelector, peer: Any) -> bytes:
    """Return the last byte of a peer and stop watching it."""
    selector.unregister(peer)
    try:
        return peer.recv(1)
    except OSError:  # the connection was reset, or the host did not answer for longer than keep-alive allows
        return KILLED


def connect_watchdog(this_rank: Rank, store: Store, seconds: float) -> RankWatchdog:
    """Connect every rank with rank 0 and start the watchdog of this one.

    Args:
        this_rank: the rank of this process.
        store: where rank 0 publishes the port at which it listens, and a secret token.
        seconds: how long to wait for the other ranks.
    """
    if this_rank.leads:
        return RankWatchdog(0, _accept_ranks(this_rank, store, seconds))
    port, token = store.get("watchdog").decode().split()
    peer = socket.create_connection((this_rank.host, int(port)), timeout=seconds)
    peer.sendall(f"{token} {this_rank.rank:>8}".encode())
    return RankWatchdog(this_rank.rank, {0: _with_keep_alive(peer)})


def _accept_ranks(this_rank: Rank, store: Store, seconds: float) -> dict[int, socket.socket]:
    """Accept one connection from every other rank; close those that do not send the token."""
    token, peers = secrets.token_hex(16), dict[int, socket.socket]()
    with socket.create_server((LOOPBACK if this_rank.host == LOOPBACK else "", 0)) as server:
        server.settimeout(seconds)
        store.set("watchdog", f"{server.getsockname()[1]} {token}")
        while missing := sorted(set(range(1, this_rank.size)) - set(peers)):
            try:
                peer = server.accept()[0]
            except TimeoutError:
                late = f"rank {missing[0]} did not connect in {seconds:.0f} s"
                raise UserError("engine", "distributed", late) from None
            rank = _greeting_rank(peer, token)
            if rank in missing:
                peers[rank] = _with_keep_alive(peer)
            else:
                peer.close()
    return peers


def _greeting_rank(peer: socket.socket, token: str) -> int:
    """Read "TOKEN RANK" from a new connection; return the rank, or −1 if the token is wrong."""
    try:
        peer.settimeout(10)
        received, _, rank = peer.recv(len(token) + 9, socket.MSG_WAITALL).decode().partition(" ")
        return int(rank) if secrets.compare_digest(received, token) else -1
    except (OSError, ValueError, TypeError):
        return -1


def _with_keep_alive(peer: socket.socket) -> socket.socket:
    """Turn on TCP keep-alive, so that a host that vanishes is noticed within a minute."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    return peer


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
