"""Name resolution with a deadline.

`getaddrinfo` has no timeout, and a hostile name server can hold it for half a minute. So each
lookup runs in a thread, which is abandoned at the deadline. Concurrent lookups of one name share a
thread; nothing is cached.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from app.lib.outbound.addresses import Address

# Enough for every lane of a process to meet several dead name servers in a row.
MAX_LOOKUPS = 128

Lookup = Callable[[str], Sequence[Address]]


class TooManyLookups(Exception):
    """So many names are being looked up that one more would only wait; try again later."""


def system_lookup(host: str) -> list[Address]:
    """Ask the system's resolver for every address of a name, in its order of preference.

    Blocks as long as the resolver does. Raises `socket.gaierror` when the name does not resolve.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found))


class Resolver:
    """Looks up names for many threads; `lookup` is the blocking function that does it."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._lock = threading.Lock()
        self._running: dict[str, Future[Sequence[Address]]] = {}

    def resolve(self, host: str, seconds: float) -> Sequence[Address]:
        """Return every address of `host`.

        Raises `TimeoutError` after `seconds`, `TooManyLookups`, or what the lookup raised.
        """
        return self._begin(host).result(seconds)

    def _begin(self, host: str) -> Future[Sequence[Address]]:
        with self._lock:
            running = self._running.get(host)
            if running is not None:
                return running
            if len(self._running) >= MAX_LOOKUPS:
                raise TooManyLookups
            future: Future[Sequence[Address]] = Future()
            threading.Thread(
                target=self._run, args=(host, future), name=f"resolve {host}", daemon=True
            ).start()
            # The thread waits for the lock before it removes this.
            self._running[host] = future
            return future

    def _run(self, host: str, future: Future[Sequence[Address]]) -> None:
        found: Sequence[Address] = ()
        failed: Exception | None = None
        try:
            found = self._lookup(host)
        except Exception as error:  # noqa: BLE001 - raised again in each waiting thread
            failed = error
        with self._lock:
            del self._running[host]
        if failed is None:
            future.set_result(found)
        else:
            future.set_exception(failed)
