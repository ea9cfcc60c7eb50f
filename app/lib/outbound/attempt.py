"""One attempt at a request: its deadline, its allowance of bytes, and how far it has come.

The attempt under way in a thread is found through `current()`, because urllib3 has no place to
carry it from the caller down to the socket.
"""

import threading
import time
from enum import StrEnum

# For all addresses of a name together.
CONNECT_SECONDS = 5.0

# Limit before the body: status lines and headers, those of interim responses included.
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024


class DeadlinePassed(TimeoutError):
    """The whole attempt has had its time."""


class AnswerTooLong(Exception):
    """More came from the receiver than is read of an answer."""


class Stage(StrEnum):
    """How far an attempt has come, in words that finish "while …"."""

    RESOLVING = "resolving the name"
    CONNECTING = "connecting"
    HANDSHAKE = "agreeing on TLS"
    SENDING = "sending the request"
    WAITING = "waiting for the answer"
    READING = "reading the answer"


class Attempt:
    """The state of one attempt; used by one thread."""

    __slots__ = (
        *("allowance", "connect", "deadline", "dns", "first_byte", "fresh", "reused"),
        *("seconds", "sent_at", "stage", "tls"),
    )

    def __init__(self, started: float, seconds: float, *, fresh: bool = False) -> None:
        """Begin an attempt that has `seconds` from `started`, a reading of `time.monotonic()`.

        `fresh` asks for a new connection, whatever is kept alive.
        """
        self.seconds = seconds
        self.deadline = started + seconds
        self.fresh = fresh
        self.reused = True  # until a connection is opened for it
        self.stage = Stage.SENDING
        self.allowance = MAX_HEAD_BYTES
        self.sent_at = 0.0
        # Milliseconds; None for what did not happen.
        self.dns: float | None = None
        self.connect: float | None = None
        self.tls: float | None = None
        self.first_byte: float | None = None

    def left(self) -> float:
        """Return the seconds left; raises `DeadlinePassed` when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        return left

    def expired(self) -> bool:
        """Say whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def room(self, size: int) -> int:
        """Return how many of `size` bytes may be read; raises `AnswerTooLong` when none may."""
        if self.allowance <= 0:
            raise AnswerTooLong
        return min(size, self.allowance)

    def received(self, count: int) -> None:
        """Note that `count` bytes of the answer came."""
        if self.first_byte is None and count:
            self.first_byte = milliseconds_since(self.sent_at)
        self.allowance -= count


class _Here(threading.local):
    attempt: Attempt


_here = _Here()


def begin(attempt: Attempt) -> None:
    """Make an attempt the one under way in this thread, until the next."""
    _here.attempt = attempt


def current() -> Attempt:
    """Return the attempt under way in this thread."""
    return _here.attempt


def milliseconds_since(start: float) -> float:
    """Return the milliseconds since `start`, which is in seconds of `time.monotonic()`."""
    return round((time.monotonic() - start) * 1000, 2)
