"""Connections that a process keeps open while their clients send or read nothing: bounded.

ASGI shows no connection, and a server shows none before its request is whole: a thread finds them
among the process's open files. On a platform without /dev/fd nothing is bounded.
"""

import os
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from app.lib.gateway.requests import Client

Peer: TypeAlias = tuple[str, str]

_OPEN_FILES = Path("/dev/fd")
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
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
        # Whether it had an answer, and when it was first seen or had its last.
        self._waits: dict[Peer, tuple[bool, float]] = {}
        self._given_up: set[Peer] = set()
        self._ports: set[int] = set()

    def begin(self, peer: Peer, client: Client) -> None:
        """Note that a request has come on a connection."""
        self._clients[peer] = client

    def end(self, peer: Peer) -> None:
        """Note that its answer has been sent."""
        self._clients.pop(peer, None)
        self._waits[peer] = True, time.monotonic()

    def give_up(self, peer: Peer) -> None:
        """Have a connection hung up: a server sends what it holds for as long as its reader is."""
        self._given_up.add(peer)

    def watch(self) -> None:
        """Start the thread that looks, which ends with the process."""
        threading.Thread(target=self._watch, name="connections", daemon=True).start()

    def work(self) -> int:
        """Look once; return how many connections were hung up."""
        now = time.monotonic()
        given_up, self._given_up = self._given_up, set()
        clients, numbers = self._clients.copy(), self._numbers()
        for peer in self._waits.keys() - numbers.keys() - clients.keys():
            self._waits.pop(peer, None)
        awaited = []
        for peer in numbers:
            answered, since = self._waits.setdefault(peer, (False, now))
            whose = self._whose(peer[0])
            if whose is not None and (peer not in clients or clients[peer].is_awaited):
                awaited.append(Awaited(answered, since, peer, whose))
        too_many = set(superfluous(awaited, self._each, self._total))
        return sum(_hang_up(peer, numbers[peer]) for peer in numbers.keys() & too_many | given_up)

    def _watch(self) -> None:
        pause = _USUAL_PAUSE
        while True:
            time.sleep(pause)
            # Those that were hung up come again at once, and others wait for what they leave.
            pause = _SHORT_PAUSE if self.work() else _USUAL_PAUSE

    def _numbers(self) -> dict[Peer, int]:
        """Return the descriptors of all connections to the ports that this process listens on."""
        found: dict[Peer, int] = {}
        for entry in _OPEN_FILES.iterdir() if _OPEN_FILES.is_dir() else ():
            number = int(entry.name)
            with suppress(OSError), _copied(number) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                port = copy.getsockname()[1]
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    self._ports.add(port)
                elif port in self._ports:
                    found[_peer(copy)] = number
        return found


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
    """End a connection and drop what was not sent; its other handles see it as ended."""
    with suppress(OSError), _copied(number) as connection:
        # Numbers are reused: it may be another by now.
        if _peer(connection) == peer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _peer(connection: socket.socket) -> Peer:
    """Return the address and port of the other end, as ASGI writes them; raises `OSError`."""
    host, port, *_ = connection.getpeername()
    return host, str(port)


@contextmanager
def _copied(number: int) -> Iterator[socket.socket]:
    """Open a second handle of the socket with this number, for a `with`; raises `OSError`."""
    copy = os.dup(number)
    try:
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            raise OSError("not a socket")
        handle = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with handle:
        yield handle
