"""From a host name to a connection: resolve once, vet every answer, dial one of those addresses.

There is no second look at DNS, which could lead elsewhere.
"""

import functools
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

import certifi

from app.lib.outbound.addresses import Address, Network, Target, vet
from app.lib.outbound.attempt import (
    CONNECT_SECONDS,
    Attempt,
    Stage,
    TooManyLookups,
    milliseconds_since,
)
from app.lib.outbound.connection import Connection

_FLAGS = ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST | ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN


def verifying(ca_file: str | None = None, pem: str | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts the authorities in a file or text of PEM.

    Without either these are the system's. An intermediate or a server's own certificate among them
    is trusted as it is.
    """
    context = ssl.create_default_context(cafile=ca_file, cadata=pem)
    context.verify_flags = _FLAGS
    context.hostname_checks_common_name = False
    return context


def of_receivers(authorities: str | None) -> ssl.SSLContext:
    """Return a context that trusts these roots (PEM) alone, or the public ones."""
    return _shared(None if authorities else certifi.where(), authorities)


# Loading the roots takes tens of milliseconds, so clients of the same roots share a context.
_shared = functools.lru_cache(maxsize=4)(verifying)


# Enough for every lane of a process to meet several dead name servers in a row.
MAX_LOOKUPS = 128

Lookup = Callable[[str], Sequence[Address]]


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


class Dialer:
    """Opens connections to vetted addresses, and to no others."""

    def __init__(
        self,
        resolver: Resolver,
        allowed_networks: Collection[Network],
        nat64_prefixes: Collection[ipaddress.IPv6Network],
        tls: ssl.SSLContext,
    ) -> None:
        self._resolver = resolver
        self._allowed_networks = allowed_networks
        self._nat64_prefixes = nat64_prefixes
        self._tls = tls

    def open(self, target: Target, attempt: Attempt) -> Connection:
        """Resolve, vet and connect, with TLS if the target has it, within the attempt.

        TLS checks the certificate against the host's name, not against the address. Raises
        `RefusedAddress`, `TooManyLookups`, or an `OSError` of the stage the attempt is in.
        """
        attempt.reused = False
        sock = self._connect(target.host, target.port, attempt, encrypted=target.encrypted)
        connection = Connection(sock, attempt)
        if target.encrypted:
            attempt.stage = Stage.HANDSHAKE
            started = time.monotonic()
            try:
                connection.encrypt(self._tls, target.host)
            except BaseException:
                connection.close()
                raise
            attempt.timings.tls = milliseconds_since(started)
        return connection

    def _connect(self, host: str, port: int, attempt: Attempt, *, encrypted: bool) -> socket.socket:
        """Connect to one of the host's addresses; what is sent plainly goes to allowed networks."""
        addresses: Sequence[Address]
        try:
            addresses = [ipaddress.ip_address(host)]
        except ValueError:
            attempt.stage = Stage.RESOLVING
            started = time.monotonic()
            addresses = self._resolver.resolve(host, attempt.left())
            attempt.timings.dns = milliseconds_since(started)
        vet(addresses, self._allowed_networks, self._nat64_prefixes, encrypted=encrypted)
        attempt.stage = Stage.CONNECTING
        started = time.monotonic()
        sock = self._connect_to_any(addresses, port, min(attempt.left(), CONNECT_SECONDS))
        attempt.timings.connect = milliseconds_since(started)
        return sock

    def _connect_to_any(
        self, addresses: Sequence[Address], port: int, seconds: float
    ) -> socket.socket:
        """Connect to the first address that answers; each may use its share of the time left."""
        ends = time.monotonic() + seconds
        failed: OSError = TimeoutError()
        for tried, address in enumerate(addresses):
            share = (ends - time.monotonic()) / (len(addresses) - tried)
            if share <= 0:
                break
            try:
                return _connect(address, port, share)
            except OSError as error:
                failed = error
        raise failed


def _connect(address: Address, port: int, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(seconds)
        sock.connect((str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock
