"""HTTP client for URLs that customers name: each POST returns one `Answer`, and raises nothing.

No redirect is followed, no proxy or credential of the environment is used, no cookie is kept and no
body is decompressed.
"""

import functools
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Network
from typing import Any, Self

from app.lib.outbound import dialing
from app.lib.outbound.addresses import DEFAULT_PORTS, BadURL, Network, Target, parse_url
from app.lib.outbound.answers import Head
from app.lib.outbound.attempt import Attempt, Failure, Stage, Timings, explain
from app.lib.outbound.connection import Connection, Pool, Unread
from app.lib.outbound.dialing import Dialer, Lookup, Resolver, system_lookup

DEADLINE_SECONDS = 15.0

# What is read of a body, and for how long once its headers have come: it changes no verdict.
KEPT_BODY_BYTES = 4 * 1024
BODY_SECONDS = 1.0
KEPT_HEADER_CHARACTERS = 8 * 1024

_REQUEST_TIMEOUT = 408
_RETRY_AFTER_CHARACTERS = 64
_TARGETS_REMEMBERED = 1024
_CONTROL_CHARACTERS = dict.fromkeys((*range(0x20), 0x7F), " ")


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
    """Sends POSTs for all threads of a process."""

    def __init__(
        self,
        allowed_networks: Collection[Network] = (),
        *,
        nat64_prefixes: Collection[IPv6Network] = (),
        authorities: str | None = None,
        lookup: Lookup = system_lookup,
    ) -> None:
        """`allowed_networks` may be sent to although they are not public, also by `http://`."""
        tls = dialing.of_receivers(authorities)
        self._dialer = Dialer(Resolver(lookup), allowed_networks, nat64_prefixes, tls)
        self._pool = Pool()

        @functools.lru_cache(_TARGETS_REMEMBERED)
        def target(url: str) -> Target:
            return parse_url(url, allowed_networks, nat64_prefixes)

        self._target = target

    def send(self, url: str, body: bytes, headers: Mapping[str, str], **how: Any) -> Answer:
        """POST once, as `Burst.send` does, over a connection of its own."""
        with Burst(self._target, self._dialer) as burst:
            return burst.send(url, body, headers, **how)

    def burst(self, owner: Hashable) -> "Burst":
        """Begin a row of POSTs, over connections that are kept alive for this owner alone."""
        return Burst(self._target, self._dialer, self._pool, owner)

    def reach(self, url: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> str | None:
        """Open a connection to a URL's host as `send` does, TLS included, and close it.

        Nothing is asked. Returns None, or why there is none, in a line to read.
        """
        attempt = Attempt(time.monotonic(), deadline_seconds)
        try:
            self._dialer.open(self._target(url), attempt).close()
        except BadURL as error:
            return error.detail
        except Exception as caught:  # noqa: BLE001 - explain() logs what it does not know
            return explain(caught, attempt)[1]
        return None

    def close(self) -> None:
        """Close every connection that is kept alive."""
        self._pool.close()


class Burst:
    """POSTs in a row by one thread; close it, for it holds a connection.

    On a connection that is used again, an answer may belong to no request (a stray), or to the
    one before. So an answer counts only once `settle` has found nothing behind it.
    """

    def __init__(
        self,
        target: Callable[[str], Target],
        dialer: Dialer,
        pool: Pool | None = None,
        owner: Hashable = None,
    ) -> None:
        """Begin; `Outbound` does it. Without a `pool` each POST has a connection of its own."""
        self._target = target
        self._dialer = dialer
        self._pool = pool
        self._owner = owner
        self._key: Hashable = None
        self._connection: Connection | None = None

    def send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        method: str = "POST",
        deadline_seconds: float = DEADLINE_SECONDS,
        kept_bytes: int = KEPT_BODY_BYTES,
        body_seconds: float = BODY_SECONDS,
    ) -> Answer:
        """POST `body` (or GET) and return what came of it, at `deadline_seconds` at the latest.

        Never raises for what the network or the receiver does. Of the answer's body at most
        `kept_bytes` are read, for `body_seconds` at most.
        """
        self.settle()
        started = time.monotonic()
        attempt = Attempt(started, deadline_seconds)
        try:
            target = self._target(url)
            request = _request(target, body, headers, method)
        except BadURL as error:
            return Answer(None, Failure.BAD_URL, error.detail, attempt.ended())
        except ValueError:
            words = "a header of the request holds a line break, or a letter outside Latin-1"
            return Answer(None, Failure.PROTOCOL, words, attempt.ended())
        reconnected = False
        self._connection = self._reused(target)
        asked = self._ask(target, request, attempt)
        # A connection that was kept alive may be dead: receivers close idle ones when they like,
        # some with a 408 (RFC 9110, section 15.5.9). Should the request have been read, receivers
        # deduplicate.
        died = (
            asked.status == _REQUEST_TIMEOUT
            if isinstance(asked, Head)
            else asked[0] is Failure.RESET and attempt.timings.first_byte is None
        )
        if attempt.reused and died:
            self._leave()
            reconnected = True
            attempt = Attempt(started, deadline_seconds)
            asked = self._ask(target, request, attempt)
        if not isinstance(asked, Head):
            failure, why = asked
            return Answer(None, failure, why, attempt.ended(), reconnected=reconnected)
        read, cut = self._read(asked, attempt, kept_bytes, body_seconds)
        after = asked.get("retry-after")
        return Answer(
            asked.status,
            None,
            cut,
            attempt.ended(),
            _headers(asked),
            read,
            after and _plain(after[:_RETRY_AFTER_CHARACTERS]),
            reconnected,
        )

    def settle(self) -> bool:
        """Look for what stands behind the last answer; return whether the answer counts.

        It does not if another stands behind it and it was not its connection's first: then it may
        be a stray, and the one behind it the request's. That receiver gets one POST a connection
        for an hour.
        """
        connection = self._connection
        if connection is None:
            return True
        seen = connection.look()
        if seen is Unread.ANSWER and self._pool is not None:
            self._pool.note_stray(self._key)
        if seen is not Unread.NOTHING or not connection.keep or self._pool is None:
            self._leave()
        elif not self._pool.may_go_on(self._key, connection):
            self._pool.give(self._key, connection)
            self._connection = None
        return seen is not Unread.ANSWER or connection.answers == 1

    def close(self) -> None:
        """Let another burst of this owner have the connection."""
        self.settle()
        if self._connection is not None and self._pool is not None:
            self._pool.give(self._key, self._connection)
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reused(self, target: Target) -> Connection | None:
        """Return a connection to this target on which nothing stands, if there is one."""
        if self._pool is None:
            return None
        key = (self._owner, target.scheme, target.host, target.port)
        if self._connection is not None:
            if key == self._key:
                return self._connection
            self._leave()
        self._key = key
        return self._pool.take(key)

    def _ask(self, target: Target, request: bytes, attempt: Attempt) -> Head | tuple[Failure, str]:
        """Send the request, over a new connection where there is none; return the answer's head."""
        try:
            if self._connection is None:
                self._connection = self._dialer.open(target, attempt)
            head = self._connection.ask(request, attempt)
        except Exception as caught:  # noqa: BLE001 - explain() logs what it does not know
            self._leave()
            return explain(caught, attempt)
        return head

    def _read(
        self, head: Head, attempt: Attempt, most: int, seconds: float
    ) -> tuple[bytes, str | None]:
        """Return the first bytes of the body, and what broke it off, if something did."""
        assert self._connection is not None  # noqa: S101  # it has just answered
        kept = bytearray()
        attempt.stage = Stage.READING
        attempt.deadline = min(attempt.deadline, time.monotonic() + seconds)
        try:
            self._connection.read(head, most, kept)
        except TimeoutError as late:
            if time.monotonic() >= attempt.started + attempt.seconds:
                return bytes(kept), explain(late, attempt)[1]
            return bytes(kept), f"the body of the answer had not ended after {seconds:g} s"
        except Exception as caught:  # noqa: BLE001 - as above
            return bytes(kept), explain(caught, attempt)[1]
        return bytes(kept), None

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _request(target: Target, body: bytes, headers: Mapping[str, str], method: str) -> bytes:
    """Return head and body in one piece: it is quicker, and some receivers read only once."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    if target.port != DEFAULT_PORTS[target.scheme]:
        host = f"{host}:{target.port}"
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] * (method != "GET") + ["", ""]
    head = "\n".join(lines)
    if head.count("\n") != len(lines) - 1 or "\r" in head:
        raise ValueError("A header has no line breaks.")
    return head.replace("\n", "\r\n").encode("latin-1") + body


def _headers(answer: Head) -> list[tuple[str, str]]:
    """Return the headers that fit what is kept, without control characters (RFC 9110, 5.5)."""
    kept = []
    room = KEPT_HEADER_CHARACTERS
    for name, value in answer.headers:
        size = len(name) + len(value)
        if size <= room:
            room -= size
            kept.append((_plain(name), _plain(value)))
    return kept


def _plain(text: str) -> str:
    return text if text.isprintable() else text.translate(_CONTROL_CHARACTERS)
