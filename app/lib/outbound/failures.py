"""Reasons why an attempt got no answer: a kind for programs, by stage, and a line for people.

The lines are shown to the endpoint's owner. So they hold nothing that the receiver wrote, no
address that a name resolved to, and no text of Python's exceptions.
"""

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

from app.lib.outbound.addresses import RefusedAddress
from app.lib.outbound.answers import NotHTTP
from app.lib.outbound.attempt import CONNECT_SECONDS, Attempt, Stage
from app.lib.outbound.resolver import TooManyLookups

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
    causes = tuple(_causes(error))
    if refused := _first(causes, RefusedAddress):
        return Failure.REFUSED_ADDRESS, f"refused: {refused}"
    if _first(causes, TimeoutError) and attempt.expired():
        return (
            Failure.TIMEOUT,
            f"the time was up after {attempt.seconds:g} s, while {attempt.stage}",
        )
    if attempt.stage is Stage.RESOLVING:
        return Failure.DNS, _explain_resolving(causes)
    if attempt.stage is Stage.CONNECTING:
        return Failure.CONNECT, _explain_connecting(causes)
    if attempt.stage is Stage.HANDSHAKE:
        return Failure.TLS, _explain_tls(causes)
    return _explain_exchange(causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first(causes: tuple[BaseException, ...], kind: type[_Error]) -> _Error | None:
    return next((cause for cause in causes if isinstance(cause, kind)), None)


def _explain_resolving(causes: tuple[BaseException, ...]) -> str:
    if _first(causes, TooManyLookups):
        return "too many names were being resolved here at once"
    failed = _first(causes, socket.gaierror)
    if failed is not None and failed.errno == socket.EAI_AGAIN:
        return "the name could not be resolved: its name servers did not answer"
    return "the name does not resolve"


def _explain_connecting(causes: tuple[BaseException, ...]) -> str:
    if _first(causes, TimeoutError):
        return f"could not connect within {CONNECT_SECONDS:g} s"
    return f"could not connect{_system_words(causes)}"


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
