"""How processes notice that one of them has ended: each keeps a connection to rank 0 that carries one byte, its end.

The kernel closes a dead process's connections at once, on any host and under any backend, while a collective
operation may wait for the dead for ever. DONE ends a connection in peace, FAILED says that the process has printed why;
a connection that just closes belonged to a process that was killed.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch.distributed import Store

from fedflat.engine.place import LOOPBACK, Place
from fedflat.errors import UserError

DONE, FAILED, KILLED = b".", b"!", b""


class Lifeline:
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


def connect(place: Place, store: Store, seconds: float) -> Lifeline:
    """Connect all ranks with rank 0, which they find through the store."""
    if place.leads:
        return Lifeline(0, _accept(place, store, seconds))
    port, token = store.get("lifeline").decode().split()
    peer = socket.create_connection((place.host, int(port)), timeout=seconds)
    peer.sendall(f"{token} {place.rank:>8}".encode())
    return Lifeline(place.rank, {0: _kept_alive(peer)})


def _accept(place: Place, store: Store, seconds: float) -> dict[int, socket.socket]:
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
