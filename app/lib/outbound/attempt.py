"""One attempt at a request: its deadline, how far it has come, and where its time went."""

import time
from dataclasses import dataclass
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


@dataclass(slots=True)
class Timings:
    """Where the time of an attempt went, in milliseconds; None for what did not happen.

    `first_byte` is the wait from the end of the request to the first byte of the answer.
    """

    total: float = 0.0
    dns: float | None = None
    connect: float | None = None
    tls: float | None = None
    first_byte: float | None = None


class Attempt:
    """The state of one attempt; used by one thread."""

    __slots__ = ("deadline", "reused", "seconds", "sent_at", "stage", "started", "timings")

    def __init__(self, started: float, seconds: float) -> None:
        """Begin an attempt that has `seconds` from `started`, a reading of `time.monotonic()`."""
        self.started = started
        self.seconds = seconds
        self.deadline = started + seconds
        self.reused = True  # until a connection is opened for it
        self.stage = Stage.SENDING
        self.sent_at = 0.0
        self.timings = Timings()

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
        if self.timings.first_byte is None:
            self.timings.first_byte = milliseconds_since(self.sent_at)

    def ended(self) -> Timings:
        """Return where the time went, the total being that until now."""
        self.timings.total = milliseconds_since(self.started)
        return self.timings


def milliseconds_since(start: float) -> float:
    """Return the milliseconds since `start`, which is in seconds of `time.monotonic()`."""
    return round((time.monotonic() - start) * 1000, 2)
