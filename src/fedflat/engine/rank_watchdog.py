"""Ends this process when another process of the run dies or fails.

A collective operation may wait for a dead process for ever, whereas the kernel closes the connections of a dead process
at once, on every host and with every backend. Therefore each rank keeps one connection to rank 0 and sends a single
byte over it, at its end: DONE after a successful run, FAILED after an error that it has already printed. A connection
that closes without a byte belonged to a process that was killed.
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

from fedflat.engine.ranks import LOOPBACK, Rank
from fedflat.errors import UserError

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
