"""One attempt at a request: its deadline, how far it has come, and where its time went."""

import logging
import os
import socket
import ssl
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from app.lib.outbound.addresses import RefusedAddress
from app.lib.outbound.answers import NotHTTP

# For all addresses of a name together.
CONNECT_SECONDS = 5.0


class DeadlinePassed(TimeoutError):
    """The whole attempt has had its time."""


class TooManyLookups(Exception):
    """So many names are being looked up that one more would only wait; try again later."""


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


@dataclass(slots=True)
class Attempt:
    """The state of an attempt that has `seconds` from `started`, a reading of `time.monotonic()`.

    It is `reused` until a connection is opened for it. Used by one thread.
    """

    started: float
    seconds: float
    reused: bool = True
    stage: Stage = Stage.SENDING
    sent_at: float = 0.0
    timings: Timings = field(default_factory=Timings)
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.started + self.seconds

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


_log = logging.getLogger(__name__)

# All that a connection says when the other side has gone.
_LOST = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

_Error = TypeVar("_Error", bound=BaseException)


class Failure(StrEnum):
    """Kinds of failures; the values are stored."""

    BAD_URL = "bad_url"
    REFUSED_ADDRESS = "refused_address"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    RESET = "reset"
    PROTOCOL = "protocol"


def explain(error: BaseException, attempt: Attempt) -> tuple[Failure, str]:
    """Say what an exception means, by its causes and how far the attempt was."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    causes = tuple(found)
    if refused := _first(causes, RefusedAddress):
        return Failure.REFUSED_ADDRESS, f"refused: {refused}"
    if _first(causes, TimeoutError) and attempt.expired():
        return (
            Failure.TIMEOUT,
            f"the time was up after {attempt.seconds:g} s, while {attempt.stage}",
        )
    if attempt.stage is Stage.RESOLVING:
        if _first(causes, TooManyLookups):
            return Failure.DNS, "too many names were being resolved here at once"
        failed = _first(causes, socket.gaierror)
        silent = failed is not None and failed.errno == socket.EAI_AGAIN
        why = "could not be resolved: its name servers did not answer"
        return Failure.DNS, f"the name {why if silent else 'does not resolve'}"
    if attempt.stage is Stage.CONNECTING:
        if _first(causes, TimeoutError):
            return Failure.CONNECT, f"could not connect within {CONNECT_SECONDS:g} s"
        return Failure.CONNECT, f"could not connect{_system_words(causes)}"
    if attempt.stage is Stage.HANDSHAKE:
        return Failure.TLS, _explain_tls(causes)
    return _explain_exchange(causes)


def _first(causes: tuple[BaseException, ...], kind: type[_Error]) -> _Error | None:
    return next((cause for cause in causes if isinstance(cause, kind)), None)


def _explain_tls(causes: tuple[BaseException, ...]) -> str:
    if refused := _first(causes, ssl.SSLCertVerificationError):
        return f"the TLS certificate was refused: {refused.verify_message.rstrip('.')}"
    failed = _first(causes, ssl.SSLError)
    if failed is None or isinstance(failed, _LOST):
        return "the connection was closed in the TLS handshake"
    reason = (failed.reason or "unknown reason").replace("_", " ").lower()
    return f"the TLS handshake failed: {reason}"


def _explain_exchange(causes: tuple[BaseException, ...]) -> tuple[Failure, str]:
    if any(isinstance(cause, _LOST) for cause in causes):
        return Failure.RESET, "the connection was closed before the answer was complete"
    if _first(causes, ssl.SSLError):
        return Failure.TLS, _explain_tls(causes)
    if _first(causes, NotHTTP):
        return Failure.PROTOCOL, "the answer is not valid HTTP"
    if _first(causes, OSError):
        return Failure.RESET, f"the connection failed{_system_words(causes)}"
    # Not the errors themselves: their words may hold the URL, or what the receiver wrote.
    _log.error("An answer could not be read: %s", [type(cause).__name__ for cause in causes])
    return Failure.PROTOCOL, "the answer could not be read"


def _system_words(causes: tuple[BaseException, ...]) -> str:
    """Return what the operating system says of its error number, as the end of a sentence."""
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno is not None:
            return f": {os.strerror(cause.errno).lower()}"
    return ""
