"""HTTP client for URLs that customers name: each POST returns one `Answer`, and raises nothing.

No redirect is followed, no proxy or credential of the environment is used, no cookie is kept and no
body is decompressed.
"""

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from urllib3.response import HTTPResponse

from app.lib.outbound.addresses import BadURL, Network, Target, parse_url
from app.lib.outbound.attempt import (
    MAX_BODY_BYTES,
    AnswerTooLong,
    Attempt,
    begin,
    milliseconds_since,
)
from app.lib.outbound.dialing import Dialer
from app.lib.outbound.failures import Failure, explain
from app.lib.outbound.resolver import Lookup, Resolver, system_lookup
from app.lib.outbound.transport import Adapter, Post
from app.lib.outbound.watchdog import Watchdog

DEADLINE_SECONDS = 15.0
SLOW_SECONDS = 1.0

KEPT_BODY_BYTES = 4 * 1024
KEPT_HEADER_CHARACTERS = 8 * 1024

_RETRY_AFTER_CHARACTERS = 64
_TARGETS_REMEMBERED = 1024
_CONTROL_CHARACTERS = dict.fromkeys((*range(0x20), 0x7F), " ")


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of an attempt went, in milliseconds; None for what did not happen.

    `first_byte` is the wait from the end of the request to the first byte of the answer.
    """

    total: float
    dns: float | None = None
    connect: float | None = None
    tls: float | None = None
    first_byte: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a POST.

    With a `failure` there is no status. With a status there is no failure: a receiver that said 200
    has taken the message, even if `error` says that its body broke off.
    """

    status: int | None
    failure: Failure | None
    error: str | None
    timings: Timings
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    retry_after: str | None = None
    reconnected: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the receiver took the message: any 2xx."""
        return self.status is not None and 200 <= self.status < 300


class Outbound:
    """Sends POSTs for all threads of a process, over connections that are kept alive."""

    def __init__(
        self,
        allowed_networks: Collection[Network] = (),
        *,
        authorities: str | None = None,
        lookup: Lookup = system_lookup,
    ) -> None:
        """Make a client.

        `allowed_networks` may be sent to although they are not public, also by `http://`.
        `authorities` are roots (PEM) to trust in place of the public ones. `lookup` resolves a
        name, blocking.
        """
        self._adapter = Adapter(Dialer(Resolver(lookup), allowed_networks), authorities)
        self._watchdog = Watchdog()

        @functools.lru_cache(_TARGETS_REMEMBERED)
        def target(url: str) -> Target:
            return parse_url(url, allowed_networks)

        self._target = target
        # Its lines hold URLs, which may hold secrets, and malformed headers of receivers.
        logging.getLogger("urllib3").setLevel(logging.CRITICAL)

    def send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        on_slow: Callable[[], None] | None = None,
        slow_after: float = SLOW_SECONDS,
        kept_bytes: int = KEPT_BODY_BYTES,
    ) -> Answer:
        """POST `body` and return what came of it, at `deadline_seconds` at the latest (to 50 ms).

        Never raises for what the network or the receiver does. `on_slow` is called once, from
        another thread, if the POST is still out after `slow_after` seconds; it should return at
        once. Of the answer's body at most `kept_bytes` are kept, and no more than 64 KiB read.
        """
        started = time.monotonic()
        try:
            post = Post(self._target(url), body, headers)
        except BadURL as error:
            return Answer(None, Failure.BAD_URL, error.detail, Timings(milliseconds_since(started)))
        watch = nullcontext() if on_slow is None else self._watchdog.watch(slow_after, on_slow)
        with watch:
            return self._post(post, started, deadline_seconds, kept_bytes)

    def reach(self, url: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> str | None:
        """Open a connection to a URL's host as `send` does, TLS included, and close it.

        Nothing is asked. Returns None, or why there is none, in a line to read.
        """
        try:
            target = self._target(url)
        except BadURL as error:
            return error.detail
        attempt = Attempt(time.monotonic(), deadline_seconds, fresh=True)
        begin(attempt)
        try:
            self._adapter.reach(target)
        except Exception as caught:  # noqa: BLE001 - explain() logs what it does not know
            return explain(caught, attempt)[1]
        return None

    def close(self) -> None:
        """Close every connection that is kept alive."""
        self._adapter.close()

    def _post(self, post: Post, started: float, seconds: float, kept_bytes: int) -> Answer:
        """Try once, and once more if a kept-alive connection turns out to be dead.

        Receivers close idle connections when they like, so a request may cross with the closing.
        Then not a byte comes back; should it have been read all the same, receivers deduplicate.
        """
        attempt = Attempt(started, seconds)
        answer = self._exchange(post, started, attempt, kept_bytes)
        if answer.failure is Failure.RESET and attempt.reused and attempt.first_byte is None:
            attempt = Attempt(started, seconds, fresh=True)
            answer = self._exchange(post, started, attempt, kept_bytes)
            return replace(answer, reconnected=True)
        return answer

    def _exchange(self, post: Post, started: float, attempt: Attempt, kept_bytes: int) -> Answer:
        begin(attempt)
        try:
            raw: HTTPResponse = self._adapter.send(post, stream=True).raw
        except Exception as caught:  # noqa: BLE001 - explain() logs what it does not know
            failure, error = explain(caught, attempt)
            return Answer(None, failure, error, _timings(started, attempt))
        body, cut = _read_body(raw, attempt, kept_bytes)
        timings = _timings(started, attempt)
        return Answer(raw.status, None, cut, timings, _headers(raw), body, _retry_after(raw))


def _read_body(answer: HTTPResponse, attempt: Attempt, kept_bytes: int) -> tuple[bytes, str | None]:
    """Return the first bytes of the body, and what broke it off, if something did.

    A body that ended leaves its connection to the next request; any other closes it.
    """
    kept = bytearray()
    left = MAX_BODY_BYTES
    error = None
    try:
        # The bytes after a 101 are not HTTP.
        while left and answer.status >= 200 and (piece := answer.read1(left)):
            kept += piece[: kept_bytes - len(kept)]
            left -= len(piece)
    except AnswerTooLong:
        pass  # more is there than is read
    except Exception as caught:  # noqa: BLE001 - as above
        error = explain(caught, attempt)[1]
    finally:
        answer.close()
    return bytes(kept), error


def _headers(answer: HTTPResponse) -> list[tuple[str, str]]:
    """Return the headers that fit what is kept, without control characters (RFC 9110, 5.5)."""
    kept = []
    room = KEPT_HEADER_CHARACTERS
    for name, value in answer.headers.iteritems():
        size = len(name) + len(value)
        if size <= room:
            room -= size
            kept.append((_plain(name), _plain(value)))
    return kept


def _retry_after(answer: HTTPResponse) -> str | None:
    value = answer.headers.get("retry-after")
    return None if value is None else _plain(value[:_RETRY_AFTER_CHARACTERS])


def _plain(text: str) -> str:
    return text if text.isprintable() else text.translate(_CONTROL_CHARACTERS)


def _timings(started: float, attempt: Attempt) -> Timings:
    return Timings(
        total=milliseconds_since(started),
        dns=attempt.dns,
        connect=attempt.connect,
        tls=attempt.tls,
        first_byte=attempt.first_byte,
    )
