"""Sockets that nobody on the other side can hold longer, or fill fuller, than the attempt allows.

A socket's timeout bounds one read, and a receiver that drips a byte a second never meets it. So
each wait on these sockets is given what is left of the whole attempt, and each read what is left of
the bytes that an answer may have. At the deadline the wait ends and the thread that owns the
connection closes it: no other thread touches a socket that may by then be someone else's.
"""

import math
import socket
import ssl
import time
from typing import TYPE_CHECKING

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from app.lib.outbound.addresses import Address
from app.lib.outbound.attempt import Attempt, Stage, current, milliseconds_since

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# Waits are rounded up to this, so that a quick exchange need not set them again for each call.
_STEP_SECONDS = 0.05


class Leashed(socket.socket):
    """A TCP socket whose every wait ends with the attempt under way."""

    _wait = 0.0

    def settimeout(self, value: float | None) -> None:
        """Ignore what urllib3 would set: the attempt alone decides."""

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Read once, within the attempt's time and allowance."""
        attempt = current()
        self._wait_within(attempt)
        view = memoryview(buffer)
        count = super().recv_into(view, attempt.room(nbytes or len(view)), flags)
        attempt.received(count)
        if count == 0 and attempt.stage is Stage.WAITING:
            # http.client would take headers that break off for headers that are complete.
            raise ConnectionResetError
        return count

    def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        """Send once, within the attempt's time."""
        self._wait_within(current())
        return super().send(data, flags)

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send all of `data`, within the attempt's time."""
        attempt = current()
        self._wait_within(attempt)
        attempt.sent_at = time.monotonic()
        super().sendall(data, flags)

    def _wait_within(self, attempt: Attempt) -> None:
        wait = math.ceil(attempt.left() / _STEP_SECONDS) * _STEP_SECONDS
        if wait != self._wait:
            self._wait = wait
            super().settimeout(wait)


class _LeashedTLS(Leashed, ssl.SSLSocket):  # type: ignore[misc] # None is a size there, 0 here
    """The same under TLS."""

    def do_handshake(self, block: bool = False) -> None:
        attempt = current()
        attempt.stage = Stage.HANDSHAKE
        started = time.monotonic()
        self._wait_within(attempt)
        super().do_handshake(block)
        attempt.tls = milliseconds_since(started)


def connect(address: Address, port: int, seconds: float) -> Leashed:
    """Connect to an address within `seconds`; raises `OSError`."""
    sock = Leashed(socket.AF_INET if address.version == 4 else socket.AF_INET6)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        socket.socket.settimeout(sock, seconds)
        sock.connect((str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts the roots in `ca_file` (PEM) alone, or those of `requests`.

    Loading the roots takes tens of milliseconds: make one and keep it.
    """
    context = ssl.create_default_context(cafile=ca_file or DEFAULT_CA_BUNDLE_PATH)
    context.sslsocket_class = _LeashedTLS
    return context
