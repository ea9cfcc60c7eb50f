"""Sockets whose every wait ends at a deadline, however slowly the other side sends.

A socket's own timeout bounds one read; these set what is left of a deadline before each wait.
`BoundSocket` has a deadline of its own, which may be moved (SMTP); `AttemptSocket` takes deadline
and byte allowance from the current HTTP attempt.
"""

import functools
import math
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from app.lib.outbound.addresses import Address
from app.lib.outbound.attempt import Stage, current, milliseconds_since

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# An attempt's timeouts are rounded up to this, so that a quick exchange sets one, not one a call.
_STEP_SECONDS = 0.05


class Deadline:
    """A moment of this process's monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Let it be so many seconds from now."""
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until then; raises `TimeoutError` when there are none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("out of time")
        return left

    def is_over(self) -> bool:
        """Say whether it has come."""
        return time.monotonic() >= self._ends


class _DeadlineSocket(socket.socket):
    """A TCP socket that sets its timeout anew before each wait."""

    def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        """Send once, until the deadline at most."""
        self._bind()
        return super().send(data, flags)

    def _bind(self) -> None:
        """Set the timeout to what is left; raises `TimeoutError` when nothing is."""
        raise NotImplementedError


class BoundSocket(_DeadlineSocket):
    """A TCP socket that waits until its deadline and no longer."""

    deadline: Deadline | None = None

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Read once, until the deadline at most."""
        self._bind()
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send all of `data`, until the deadline at most."""
        self._bind()
        super().sendall(data, flags)

    def _bind(self) -> None:
        if self.deadline is not None:
            self.settimeout(self.deadline.left())


class BoundTLSSocket(BoundSocket, ssl.SSLSocket):  # type: ignore[misc] # None is a size there, 0 here
    """The same under TLS."""


def tls_context(ca_file: str | None = None, *, verify: bool = True) -> ssl.SSLContext:
    """Return a context that verifies, by the system's authorities or those in `ca_file` (PEM).

    Without `verify` it takes any certificate: for what never leaves this machine.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = BoundTLSSocket
    return context


def encrypt(sock: BoundSocket, context: ssl.SSLContext, host: str) -> BoundTLSSocket:
    """Shake hands within the socket's deadline. Raises `OSError`, as `ssl.SSLError` is."""
    deadline = sock.deadline
    if deadline is not None:
        sock.settimeout(deadline.left())
    # The handshake as a whole is bounded by the timeout that the socket has at its beginning.
    encrypted = context.wrap_socket(sock, server_hostname=host)
    assert isinstance(encrypted, BoundTLSSocket)  # noqa: S101  # narrows what the context was told
    encrypted.deadline = deadline
    return encrypted


def connect(addresses: Sequence[Address], port: int, deadline: Deadline) -> BoundSocket:
    """Connect to the first address that answers; each may use its share of the time left.

    Raises `OSError`.
    """
    failed: OSError = TimeoutError("no address")
    for tried, address in enumerate(addresses):
        sock = BoundSocket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        try:
            sock.settimeout(deadline.left() / (len(addresses) - tried))
            sock.connect((str(address), port))
        except OSError as error:
            sock.close()
            failed = error
        else:
            sock.deadline = deadline
            return sock
    raise failed


class AttemptSocket(_DeadlineSocket):
    """A TCP socket whose every wait ends with the current attempt.

    At the deadline the thread that owns the connection closes it; no other thread touches a socket
    whose descriptor may by then be another connection's.
    """

    _wait = 0.0

    def settimeout(self, value: float | None) -> None:
        """Ignore the timeouts that urllib3 sets: the attempt alone decides."""

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Read once, within the attempt's time and allowance."""
        attempt = current()
        self._bind()
        view = memoryview(buffer)
        count = super().recv_into(view, attempt.room(nbytes or len(view)), flags)
        attempt.received(count)
        if count == 0 and attempt.stage is Stage.WAITING:
            # http.client would take headers that break off for headers that are complete.
            raise ConnectionResetError
        return count

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send all of `data`, within the attempt's time."""
        attempt = current()
        self._bind()
        attempt.sent_at = time.monotonic()
        super().sendall(data, flags)

    def _bind(self) -> None:
        wait = math.ceil(current().left() / _STEP_SECONDS) * _STEP_SECONDS
        if wait != self._wait:
            self._wait = wait
            super().settimeout(wait)


class _AttemptTLSSocket(AttemptSocket, ssl.SSLSocket):  # type: ignore[misc] # None is a size there, 0 here
    """The same under TLS."""

    def do_handshake(self, block: bool = False) -> None:
        attempt = current()
        attempt.stage = Stage.HANDSHAKE
        started = time.monotonic()
        self._bind()
        super().do_handshake(block)
        attempt.tls = milliseconds_since(started)


def connect_attempt(address: Address, port: int, seconds: float) -> AttemptSocket:
    """Connect to an address within `seconds`; raises `OSError`."""
    sock = AttemptSocket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        socket.socket.settimeout(sock, seconds)
        sock.connect((str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def attempt_tls_context(authorities: str | None) -> ssl.SSLContext:
    """Return a context that trusts these roots (PEM) alone, or those of `requests`."""
    return _attempt_tls_context(None if authorities else DEFAULT_CA_BUNDLE_PATH, authorities)


# Loading the roots takes tens of milliseconds, so clients of the same roots share a context.
@functools.lru_cache(maxsize=4)
def _attempt_tls_context(ca_file: str | None, pem: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file, cadata=pem)
    context.sslsocket_class = _AttemptTLSSocket
    return context
