"""Sockets for SMTP whose every wait ends at a deadline, however slowly the other side sends.

A socket's own timeout bounds one read; `BoundSocket` sets what is left of a deadline, which may be
moved, before each wait.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.lib.outbound import certificates
from app.lib.outbound.addresses import Address

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


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


class BoundSocket(socket.socket):
    """A TCP socket that waits until its deadline and no longer."""

    deadline: Deadline | None = None

    def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        """Send once, until the deadline at most."""
        self._bind()
        return super().send(data, flags)

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Read once, until the deadline at most."""
        self._bind()
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send all of `data`, until the deadline at most."""
        self._bind()
        super().sendall(data, flags)

    def _bind(self) -> None:
        """Set the timeout to what is left; raises `TimeoutError` when nothing is."""
        if self.deadline is not None:
            self.settimeout(self.deadline.left())


class BoundTLSSocket(BoundSocket, ssl.SSLSocket):  # type: ignore[misc] # None is a size there, 0 here
    """The same under TLS."""


def tls_context(ca_file: str | None = None, *, verify: bool = True) -> ssl.SSLContext:
    """Return a context that verifies, by the system's authorities or those in `ca_file` (PEM).

    Without `verify` it takes any certificate: for what never leaves this machine.
    """
    context = certificates.verifying(ca_file)
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
