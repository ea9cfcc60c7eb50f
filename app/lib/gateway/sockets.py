"""The socket behind a request, which ASGI does not show: found by its peer's address.

Where there is none to be found (another platform, a Unix socket) callers do without.
"""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    from fcntl import ioctl
    from termios import TIOCOUTQ
except ImportError:  # pragma: no cover  # Windows has neither
    ioctl = None  # type: ignore[assignment]

_DESCRIPTORS = Path("/dev/fd")
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@contextmanager
def connected_to(client: tuple[str, str]) -> Iterator[socket.socket | None]:
    """Open a second handle of the connection to this address and port, for a `with`."""
    found = _find(client)
    try:
        yield found
    finally:
        if found is not None:
            found.close()


def unsent(connection: socket.socket) -> int:
    """Return how many bytes the kernel holds that the peer has not acknowledged (SIOCOUTQ).

    0 for a connection that has ended: what it held is gone.
    """
    try:
        connection.getpeername()
    except OSError:
        return 0
    answer = ioctl(connection.fileno(), TIOCOUTQ, b"\0\0\0\0")
    return int(struct.unpack("i", answer)[0])


def hang_up(connection: socket.socket) -> None:
    """End a connection and drop what was not sent; its other handles see it as ended."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.shutdown(socket.SHUT_RDWR)


def peer(connection: socket.socket) -> tuple[str, str]:
    """Return the address and port of the other end, as ASGI writes them; raises `OSError`.

    A Unix socket has neither.
    """
    address = connection.getpeername()
    return (address[0], str(address[1])) if isinstance(address, tuple) else ("", "")


def descriptors() -> list[int]:
    """Return the numbers of this process's open files; none where the system does not show them."""
    return [int(entry.name) for entry in _DESCRIPTORS.iterdir()] if _DESCRIPTORS.is_dir() else []


@contextmanager
def copied(number: int) -> Iterator[socket.socket]:
    """Open a second handle of the socket with this number, for a `with`; raises `OSError`."""
    copy = os.dup(number)
    try:
        handle = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with handle:
        yield handle


def _find(client: tuple[str, str]) -> socket.socket | None:
    for number in descriptors():
        # Numbers are reused: the copy is what is looked at and kept.
        with suppress(OSError):
            copy = os.dup(number)
            found = _as_peer(copy, client)
            if found is not None:
                return found
            os.close(copy)
    return None


def _as_peer(descriptor: int, client: tuple[str, str]) -> socket.socket | None:
    """Return the socket of a descriptor if it leads to this address and port."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return None
    handle = socket.socket(fileno=descriptor)
    with suppress(OSError):
        if peer(handle) == client:
            return handle
    handle.detach()
    return None
