"""The processes that train together and what they tell each other.

Every rank goes through the same rounds and holds the same server state. Tensors on a GPU travel by NCCL, those on a CPU
by gloo. A world of one needs no network, and every function gives back what it was given.
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

from fedflat.engine.lifeline import Lifeline, connect
from fedflat.engine.place import Place, restarts
from fedflat.errors import UserError

MEETING = timedelta(minutes=5)  # for processes to find each other, which a launcher starts together


PATIENCE = timedelta(minutes=30)  # for a rank that is alive and silent, as while rank 0 evaluates


GRACE = 0.5  # seconds in which the lifeline may name who was lost, before this process ends for another reason


VERDICT = 10.0  # the same after an operation failed, most likely because a rank is gone


_runs = itertools.count()


class World:
    """This process and the others."""

    def __init__(self, place: Place, lifeline: Lifeline | None = None) -> None:
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


ALONE = World(Place())


@contextmanager
def _waiting_for_others() -> Iterator[None]:
    """An operation that fails because a rank is gone leaves the explanation to the lifeline."""
    try:
        yield
    except RuntimeError:
        time.sleep(VERDICT)
        raise


@contextmanager
def joined(place: Place, device: str) -> Iterator[World]:
    """The world while a run lasts; whoever leaves by an error takes the others along."""
    if place.size == 1:
        yield World(place)
        return
    importlib.import_module(
        "torch._dynamo"
    )  # imported later it would keep the group, whose threads then outlive Python
    backend = _backend(place, device)
    store = dist.PrefixStore(f"fedflat/{restarts()}/{next(_runs)}", _store(place))
    lifeline = connect(place, store, PATIENCE.total_seconds())
    previous = _catch_termination()
    try:
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=PATIENCE)
        world = World(place, lifeline)
        yield world
        world.table([0])  # all have come to the end
        dist.destroy_process_group()
        lifeline.part()
    except BaseException:
        time.sleep(GRACE)
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


def _backend(place: Place, device: str) -> str:
    """NCCL where there are GPUs, one for each process of a host; gloo for everything on a CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return "gloo"
    if place.local >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(f"--device {device}: this host has {found} GPUs, for process {place.local + 1} there is none")
    torch.cuda.set_device(place.local)
    return "cpu:gloo,cuda:nccl"


@functools.cache
def _store(place: Place) -> dist.Store:
    """Where processes find each other; torchrun keeps one, else rank 0 does."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = os.environ.get("MASTER_ADDR", place.host) if kept else place.host
    leads = place.leads and not kept
    try:
        store = _in_time(lambda: dist.TCPStore(host, place.port, place.size, is_master=leads, timeout=MEETING))
    except (dist.DistError, TimeoutError) as error:
        raise UserError(_apart(host, place.port, str(error))) from None
    store.set_timeout(PATIENCE)
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
    return met.result(MEETING.total_seconds())


def _apart(host: str, port: int, error: str) -> str:
    """Why processes did not meet."""
    if "EADDRINUSE" in error:
        return f"--engine distributed: port {port} is in use on {socket.gethostname()}; set MASTER_PORT to a free one"
    seconds = f"{MEETING.total_seconds():.0f} s"
    return f"--engine distributed: the processes did not meet at {host}:{port} in {seconds}; see what the others say"
