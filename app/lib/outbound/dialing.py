"""From a host name to a connection: resolve once, vet every answer, dial one of those addresses.

There is no second look at DNS, which could lead elsewhere.
"""

import ipaddress
import socket
import time
from collections.abc import Collection, Sequence

from app.lib.outbound.addresses import Address, Network, vet
from app.lib.outbound.attempt import CONNECT_SECONDS, Stage, current, milliseconds_since
from app.lib.outbound.deadline_sockets import connect_attempt
from app.lib.outbound.resolver import Resolver


class Dialer:
    """Opens connections to vetted addresses, and to no others."""

    def __init__(self, resolver: Resolver, allowed_networks: Collection[Network]) -> None:
        self._resolver = resolver
        self._allowed_networks = allowed_networks

    def open(self, host: str, port: int, *, encrypted: bool) -> socket.socket:
        """Resolve, vet and connect, within the attempt under way.

        `encrypted` says whether TLS follows: what is sent plainly goes to allowed networks only.
        Raises `RefusedAddress`, `TooManyLookups`, or an `OSError` of the stage the attempt is in.
        """
        addresses = self._addresses(host)
        vet(addresses, self._allowed_networks, encrypted=encrypted)
        attempt = current()
        attempt.stage = Stage.CONNECTING
        started = time.monotonic()
        sock = _connect_to_any(addresses, port, min(attempt.left(), CONNECT_SECONDS))
        attempt.connect = milliseconds_since(started)
        return sock

    def _addresses(self, host: str) -> Sequence[Address]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            attempt = current()
        attempt.stage = Stage.RESOLVING
        started = time.monotonic()
        addresses = self._resolver.resolve(host, attempt.left())
        attempt.dns = milliseconds_since(started)
        return addresses


def _connect_to_any(addresses: Sequence[Address], port: int, seconds: float) -> socket.socket:
    """Connect to the first address that answers; each may use its share of the time left."""
    ends = time.monotonic() + seconds
    failed: OSError = TimeoutError()
    for tried, address in enumerate(addresses):
        share = (ends - time.monotonic()) / (len(addresses) - tried)
        if share <= 0:
            break
        try:
            return connect_attempt(address, port, share)
        except OSError as error:
            failed = error
    raise failed
