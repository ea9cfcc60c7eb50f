"""Connections that a process keeps open while their clients send or read nothing: bounded.

A server that shows no connection before its request is whole leaves them to the kernel's table of
open files, which a thread looks at. Where there is none (another platform) nothing is bounded.
"""

import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from app.lib.gateway import sockets
from app.lib.gateway.client import Client

Peer: TypeAlias = tuple[str, str]

_USUAL_PAUSE, _SHORT_PAUSE = 1.0, 0.05


class Awaited(NamedTuple):
    """A connection whose client is waited for: since when, and whom it counts for.

    In the order in which they are hung up: first those that never had an answer.
    """

    was_answered: bool
    since: float
    peer: Peer
    whose: object


class Connections:
    """Hangs up what waits for its client beyond `each` of one client, or beyond `total` in all.

    `whose` says for whom a peer's connections count; those of None, such as a proxy's for all of
    its clients, are never hung up. Those go first that never had an answer, and of them the longest
    wait. A connection waits while no request of its is whole, and while its answer is sent.
    """

    def __init__(self, each: int, total: int, whose: Callable[[str], object]) -> None:
        self._each = each
        self._total = total
        self._whose = whose
        self._clients: dict[Peer, Client] = {}
        self._answered: dict[Peer, float] = {}
        self._known: dict[tuple[int, int], Peer | None] = {}
        self._seen: dict[Peer, float] = {}
        self._ports: set[int] = set()

    def begin(self, peer: Peer, client: Client) -> None:
        """Note that a request has come on a connection."""
        self._clients[peer] = client

    def end(self, peer: Peer) -> None:
        """Note that its answer has been sent."""
        self._clients.pop(peer, None)
        self._answered[peer] = time.monotonic()

    def watch(self) -> None:
        """Start the thread that looks, which ends with the process."""
        threading.Thread(target=self._watch, name="connections", daemon=True).start()

    def work(self) -> int:
        """Look once; return how many connections were hung up."""
        now = time.monotonic()
        clients, numbers = self._clients.copy(), self._numbers()
        peers = numbers.keys()
        self._seen = {peer: self._seen.get(peer, now) for peer in peers}
        for peer in self._answered.keys() - peers - clients.keys():
            self._answered.pop(peer, None)
        idle = (each for each in peers if each not in clients or clients[each].is_awaited)
        awaited = [
            Awaited(
                peer in self._answered,
                max(self._answered.get(peer, 0.0), self._seen[peer]),
                peer,
                whose,
            )
            for peer in idle
            if (whose := self._whose(peer[0])) is not None
        ]
        many = superfluous(awaited, self._each, self._total)
        return sum(_hang_up(peer, numbers[peer]) for peer in many)

    def _watch(self) -> None:
        pause = _USUAL_PAUSE
        while True:
            time.sleep(pause)
            # Those that were hung up come again at once, and others wait for what they leave.
            pause = _SHORT_PAUSE if self.work() else _USUAL_PAUSE

    def _numbers(self) -> dict[Peer, int]:
        """Return the descriptors of all connections to the ports that this process listens on."""
        found: dict[tuple[int, int], Peer | None] = {}
        for number in sockets.descriptors():
            with suppress(OSError):
                state = os.fstat(number)
                if stat.S_ISSOCK(state.st_mode):
                    key = number, state.st_ino
                    found[key] = self._known[key] if key in self._known else self._peer(number)
        self._known = found
        return {peer: number for (number, _), peer in found.items() if peer is not None}

    def _peer(self, number: int) -> Peer | None:
        with sockets.copied(number) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            port = copy.getsockname()[1]
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._ports.add(port)
                return None
            return sockets.peer(copy) if port in self._ports else None


def superfluous(awaited: Iterable[Awaited], each: int, total: int) -> list[Peer]:
    """Return the peers whose connections are too many."""
    oldest = sorted(awaited)
    too_many = Counter(one.whose for one in oldest)
    too_many.subtract(dict.fromkeys(too_many, each))
    found: list[Peer] = []
    kept: list[Peer] = []
    for one in oldest:
        of_its_client = too_many[one.whose] > 0
        (found if of_its_client else kept).append(one.peer)
        too_many[one.whose] -= of_its_client
    return found + kept[: max(len(kept) - total, 0)]


def _hang_up(peer: Peer, number: int) -> bool:
    with suppress(OSError), sockets.copied(number) as connection:
        # Numbers are reused: it may be another by now.
        if sockets.peer(connection) == peer:
            sockets.hang_up(connection)
            return True
    return False
