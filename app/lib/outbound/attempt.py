"""One attempt at a request: its deadline, and how far it has come."""

import time
from enum import StrEnum

# For all addresses of a name together.
CONNECT_SECONDS = 5.0


class DeadlinePassed(TimeoutError):
    """The whole attempt has had its time."""


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
        *("connect", "deadline", "dns", "first_byte", "reused", "seconds", "sent_at", "stage"),
        *("started", "tls"),
    )

    def __init__(self, started: float, seconds: float) -> None:
        """Begin an attempt that has `seconds` from `started`, a reading of `time.monotonic()`."""
        self.started = started
        self.seconds = seconds
        self.deadline = started + seconds
        self.reused = True  # until a connection is opened for it
        self.stage = Stage.SENDING
        self.sent_at = 0.0
        # Milliseconds; None for what did not happen.
        self.dns: float | None = None
        self.connect: float | None = None
        self.tls: float | None = None
        self.first_byte: float | None = None

    def begin_reading(self, seconds: float) -> None:
        """Give what is left to read `seconds`, within the attempt's time."""
        self.stage = Stage.READING
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds left; raises `DeadlinePassed` when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        return left

    def expired(self) -> bool:
        """Say whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def received(self) -> None:
        """Note that bytes of the answer came."""
        if self.first_byte is None:
            self.first_byte = milliseconds_since(self.sent_at)


def milliseconds_since(start: float) -> float:
    """Return the milliseconds since `start`, which is in seconds of `time.monotonic()`."""
    return round((time.monotonic() - start) * 1000, 2)
