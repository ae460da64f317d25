"""The processes of one run under torchrun or SLURM: their ranks, how they meet, and how they notice a lost one.

The kernel closes a dead process's connections at once, on any host and under any backend, while a collective
operation may wait for the dead for ever. DONE ends a connection in peace, FAILED says that the process has printed why;
a connection that just closes belonged to a process that was killed.

Every rank goes through the same rounds and holds the same server state. Tensors on a GPU travel by NCCL, those on a CPU
by gloo. A world of one needs no network, and every function gives back what it was given.
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

from fedflat.errors import UserError

LOOPBACK = "127.0.0.1"


class Rank(NamedTuple):
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


def find_rank(engine: str) -> Rank:
    """This process's place; raises UserError where it does not fit --engine."""
    place = _torchrun() if "RANK" in os.environ and "WORLD_SIZE" in os.environ else Rank()
    if engine == "distributed" and place.launcher == "this process":
        place = _slurm()
    if engine in ("sequential", "batched") and place.size > 1:
        raise UserError(f"--engine {engine}: trains in one process, {place.launcher} started {place.size}; use auto")
    return place


def _torchrun() -> Rank:
    env = os.environ
    size = int(env["WORLD_SIZE"])
    one_host = env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"]
    host = LOOPBACK if one_host else env.get("MASTER_ADDR", LOOPBACK)
    return Rank(
        int(env["RANK"]), size, int(env.get("LOCAL_RANK", "0")), host, int(env.get("MASTER_PORT", "29500")), "torchrun"
    )


def _slurm() -> Rank:
    """A task of a job step; `srun` sets these variables, a batch script alone does not have them."""
    env = os.environ
    if "SLURM_STEP_NUM_TASKS" not in env:
        raise UserError(
            "--engine distributed: start it with torchrun --nproc-per-node N -m fedflat … or with srun; "
            "in one process use auto"
        )
    one_host = env.get("SLURM_STEP_NUM_NODES") == "1"
    host = env.get("MASTER_ADDR", LOOPBACK if one_host else first_slurm_host(env["SLURM_STEP_NODELIST"]))
    step = int(env.get("SLURM_JOB_ID", "0")) + int(env.get("SLURM_STEP_ID", "0"))
    port = int(env.get("MASTER_PORT", 20_000 + step % 10_000))
    rank, size, local = (int(env[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
    return Rank(rank, size, local, host, port, "srun")


def first_slurm_host(hosts: str) -> str:
    """The first of SLURM's list of hosts: node[07-09,12],gpu3 → node07."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", hosts).split(",")[0]


def torchrun_restarts() -> int:
    """How often torchrun has started these processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


DONE, FAILED, KILLED = b".", b"!", b""


class RankWatchdog:
    """Watches `peers` (all others on rank 0, rank 0 on all others) in a thread and ends this process with them."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket]) -> None:
        self.rank, self.round = rank, 0
        self._peers, self._leaving = dict(peers), False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def part(self) -> None:
        """Leave in peace, once all others do."""
        self._tell(DONE)
        self._thread.join()

    def fail(self) -> None:
        """Take the others along; why has been said here."""
        self._leaving = True
        self._tell(FAILED, socket.SHUT_RDWR)  # wakes the thread as well
        self._thread.join()

    def _tell(self, last: bytes, how: int = socket.SHUT_WR) -> None:
        for peer in self._peers.values():
            with suppress(OSError):  # gone before us
                peer.sendall(last)
                peer.shutdown(how)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                ends = {key.data: _last_byte(selector, key.fileobj) for key, _ in selector.select()}
                if self._leaving:
                    return
                lost = {rank: last for rank, last in ends.items() if last != DONE}
                if lost:
                    rank = min(lost, key=lambda rank: (lost[rank] == FAILED, rank))  # the others may only follow it
                    self._end(rank, lost[rank] == FAILED)

    def _end(self, lost: int, told: bool) -> None:
        """Name the lost rank, on one of the processes that are left, and follow it."""
        speaks = self.rank == 0 or (self.rank == 1 and not told)
        if speaks:
            when = f"in round {self.round}" if self.round else "before the first round"
            print(
                f"fedflat: rank {lost} {'failed' if told else 'died'} {when}; with --out the run continues from its "
                "last checkpoint (--resume, or torchrun --max-restarts)",
                file=sys.stderr,
                flush=True,
            )
        self._tell(FAILED)
        os._exit(1)  # the main thread may be waiting for the lost rank


def _last_byte(selector: selectors.BaseSelector, peer: Any) -> bytes:
    """How a peer ended; it is watched no longer."""
    selector.unregister(peer)
    try:
        return peer.recv(1)
    except OSError:  # reset, or silent for longer than keep-alive allows
        return KILLED


def connect_watchdog(place: Rank, store: Store, seconds: float) -> RankWatchdog:
    """Connect all ranks with rank 0, which they find through the store."""
    if place.leads:
        return RankWatchdog(0, _accept(place, store, seconds))
    port, token = store.get("lifeline").decode().split()
    peer = socket.create_connection((place.host, int(port)), timeout=seconds)
    peer.sendall(f"{token} {place.rank:>8}".encode())
    return RankWatchdog(place.rank, {0: _kept_alive(peer)})


def _accept(place: Rank, store: Store, seconds: float) -> dict[int, socket.socket]:
    """A connection from every other rank; whoever does not know the token is turned away."""
    token, peers = secrets.token_hex(16), dict[int, socket.socket]()
    with socket.create_server((LOOPBACK if place.host == LOOPBACK else "", 0)) as server:
        server.settimeout(seconds)
        store.set("lifeline", f"{server.getsockname()[1]} {token}")
        while missing := sorted(set(range(1, place.size)) - set(peers)):
            try:
                peer = server.accept()[0]
            except TimeoutError:
                raise UserError(f"--engine distributed: rank {missing[0]} did not come in {seconds:.0f} s") from None
            rank = _hello(peer, token)
            if rank in missing:
                peers[rank] = _kept_alive(peer)
            else:
                peer.close()
    return peers


def _hello(peer: socket.socket, token: str) -> int:
    """The rank of a process that knows the token, else −1."""
    try:
        peer.settimeout(10)
        word, _, rank = peer.recv(len(token) + 9, socket.MSG_WAITALL).decode().partition(" ")
        return int(rank) if secrets.compare_digest(word, token) else -1
    except (OSError, ValueError, TypeError):
        return -1


def _kept_alive(peer: socket.socket) -> socket.socket:
    """Notice within a minute a host that vanished without a word."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    return peer


MEETING_TIMEOUT = timedelta(minutes=5)  # for processes to find each other, which a launcher starts together


COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # for a rank that is alive and silent, as while rank 0 evaluates


WATCHDOG_GRACE = 0.5  # seconds in which the lifeline may name who was lost, before this process ends for another reason


VERDICT = 10.0  # the same after an operation failed, most likely because a rank is gone


_runs = itertools.count()


class ProcessGroup:
    """This process and the others."""

    def __init__(self, place: Rank, lifeline: RankWatchdog | None = None) -> None:
        self.rank, self.size, self.leads = place.rank, place.size, place.leads
        self._lifeline = lifeline

    def reached(self, round: int) -> None:
        """Remember the round, for the message about a lost rank."""
        if self._lifeline:
            self._lifeline.round = round

    def share(self, make: Callable[[], Any]) -> Any:
        """What `make` gives on rank 0, on every rank; plain values only."""
        if self.size == 1:
            return make()
        text = bytearray(json.dumps(make()).encode()) if self.leads else bytearray()
        length = int(self.spread(torch.tensor(len(text))))
        data = torch.frombuffer(text or bytearray(length), dtype=torch.uint8)
        return json.loads(self.spread(data).numpy().tobytes())

    def spread(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, written over everyone's."""
        if self.size > 1:
            with _waiting_for_others():
                dist.broadcast(tensor, 0)
        return tensor

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place; the same bits on every rank."""
        if self.size > 1:
            with _waiting_for_others():
                dist.all_reduce(tensor)
        return tensor

    def table(self, numbers: Sequence[int]) -> Tensor:
        """Every rank's numbers, one row each."""
        rows = torch.zeros(self.size, len(numbers), dtype=torch.int64)
        rows[self.rank] = torch.tensor(numbers)
        return self.total(rows)

    def move(self, outgoing: Mapping[int, Tensor], room: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        """Send a tensor to some ranks, this one included, and fill `room` with those that others send here."""
        if self.rank in room:
            room[self.rank].copy_(outgoing[self.rank])
        operations = [dist.P2POp(dist.isend, t, rank) for rank, t in outgoing.items() if rank != self.rank]
        operations += [dist.P2POp(dist.irecv, t, rank) for rank, t in room.items() if rank != self.rank]
        if operations:
            with _waiting_for_others():
                for request in dist.batch_isend_irecv(operations):
                    request.wait()
        return room


SINGLE_PROCESS = ProcessGroup(Rank())


@contextmanager
def _waiting_for_others() -> Iterator[None]:
    """An operation that fails because a rank is gone leaves the explanation to the lifeline."""
    try:
        yield
    except RuntimeError:
        time.sleep(VERDICT)
        raise


@contextmanager
def join_processes(place: Rank, device: str) -> Iterator[ProcessGroup]:
    """The world while a run lasts; whoever leaves by an error takes the others along."""
    if place.size == 1:
        yield ProcessGroup(place)
        return
    importlib.import_module(
        "torch._dynamo"
    )  # imported later it would keep the group, whose threads then outlive Python
    backend = _backend(place, device)
    store = dist.PrefixStore(f"fedflat/{torchrun_restarts()}/{next(_runs)}", _store(place))
    lifeline = connect_watchdog(place, store, COLLECTIVE_TIMEOUT.total_seconds())
    previous = _catch_termination()
    try:
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.size, timeout=COLLECTIVE_TIMEOUT
        )
        world = ProcessGroup(place, lifeline)
        yield world
        world.table([0])  # all have come to the end
        dist.destroy_process_group()
        lifeline.part()
    except BaseException:
        time.sleep(WATCHDOG_GRACE)
        lifeline.fail()
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _catch_termination() -> Any:
    """End on SIGTERM as on an error, which leaves time to name a lost rank; returns the previous handler."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _backend(place: Rank, device: str) -> str:
    """NCCL where there are GPUs, one for each process of a host; gloo for everything on a CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    if place.local >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(f"--device {device}: this host has {found} GPUs, for process {place.local + 1} there is none")
    torch.cuda.set_device(place.local)
    return "cpu:gloo,cuda:nccl"


@functools.cache
def _store(place: Rank) -> dist.Store:
    """Where processes find each other; torchrun keeps one, else rank 0 does."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = os.environ.get("MASTER_ADDR", place.host) if kept else place.host
    leads = place.leads and not kept
    try:
        store = _in_time(lambda: dist.TCPStore(host, place.port, place.size, is_master=leads, timeout=MEETING_TIMEOUT))
    except (dist.DistError, TimeoutError) as error:
        raise UserError(_apart(host, place.port, str(error))) from None
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _in_time(meet: Callable[[], dist.Store]) -> dist.Store:
    """What `meet` returns or raises; TimeoutError where it waits for a stranger's answer, which torch does for ever."""
    met = Future[dist.Store]()

    def wait() -> None:
        try:
            met.set_result(meet())
        except Exception as error:
            met.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return met.result(MEETING_TIMEOUT.total_seconds())


def _apart(host: str, port: int, error: str) -> str:
    """Why processes did not meet."""
    if "EADDRINUSE" in error:
        return f"--engine distributed: port {port} is in use on {socket.gethostname()}; set MASTER_PORT to a free one"
    seconds = f"{MEETING_TIMEOUT.total_seconds():.0f} s"
    return f"--engine distributed: the processes did not meet at {host}:{port} in {seconds}; see what the others say"
