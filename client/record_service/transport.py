"""Requests of one service with one key, tried again where that is safe; with and without await.

`Service.exchange` decides, and does no I/O: it yields what is to be done, and is told what came of
it. `Transport` and `AsyncTransport` do that, by httpx2, and nothing else differs between them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import re
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

import httpx2

from record_service import version
from record_service.errors import Problem, RecordsError, Unreachable, problem

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
_LONGEST_BACKOFF = 5.0
_KEY = re.compile(r"[\x21-\x7e]+")
# The job behind it has given up: asked again it answers the same.
_FINAL = frozenset({"evidence-pack-failed"})
_STILL_RUNNING = "idempotency-key-in-use"
_WITH_CONTENT = (200, 206)
_BROKEN = "The connection broke before the end of the answer."
# Nothing of the request was sent.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

# Whether a request of ours is on its way. httpx2 logs each: who records an agent's logs would
# record these requests, by further requests, for ever.
_OURS: ContextVar[bool] = ContextVar("ours", default=False)
for _name in ("httpx2", "httpcore2.connection", "httpcore2.http11", "httpcore2.proxy"):
    logging.getLogger(_name).addFilter(lambda _: not _OURS.get())

# What an exchange yields: a request to send, or seconds to wait; and what it is told of a request.
Step = Union[httpx2.Request, float]
Came = Optional[Union[httpx2.Response, Exception]]


@dataclass(frozen=True)
class Call:
    """What is asked of the service.

    `timeout` is the seconds after which it must have ended, attempts and waits together (a read
    that has begun may outlast it); None leaves each attempt a minute for a read. `stream` leaves
    the body to be read. With `until_ready` a 202 is an answer that is not ready, asked for again
    for so many seconds.
    """

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    stream: bool = False
    until_ready: float | None = None

    @property
    def safe(self) -> bool:
        """Whether it may be sent twice (RFC 9110 section 9.2.2), and changes things once."""
        return self.method in ("GET", "PUT") or "Idempotency-Key" in self.headers


class Service:
    """Which service it is, by default that of the environment, and how its answers are read.

    Raises `RecordsError` for an address or a key that is none.
    """

    def __init__(self, base_url: str | None, key: str | None) -> None:
        base_url = base_url or os.environ.get("SERVICE_BASE_URL", "").strip()
        key = key or os.environ.get("SERVICE_API_KEY", "").strip()
        if not base_url:
            raise RecordsError(
                "Set SERVICE_BASE_URL to the service's address, such as http://127.0.0.1:8000."
            )
        if not key:
            raise RecordsError("Set SERVICE_API_KEY to an API key.")
        self.base_url = _checked_url(base_url)
        # It would be quoted in a library's own complaint.
        if _KEY.fullmatch(key) is None:
            raise RecordsError("The API key is not one: it has characters that no key has.")
        self.settings: dict[str, Any] = {
            "headers": {
                "Accept-Encoding": "gzip, deflate",
                "Authorization": f"Bearer {key}",
                "User-Agent": (
                    f"record-service-client/{version()} Python/{platform.python_version()}"
                ),
            },
            "follow_redirects": False,
        }
        if self.base_url.startswith("http:"):
            # Certificates are read for nothing, which takes longer than a request.
            self.settings["verify"] = False
        self._resume_at = 0.0

    def exchange(self, call: Call, patience: float) -> Generator[Step, Came, httpx2.Response]:
        """Bring a call to its end, tried again for `patience` seconds; return a good answer (2xx).

        Raises `Problem` for any other, and `Unreachable` if none came in time.
        """
        begun = time.monotonic()
        ends = begun + (float("inf") if call.timeout is None else call.timeout)
        give_up_at = min(ends, begun + patience)
        attempt = 0
        while True:
            rest = self._resume_at - time.monotonic()
            if rest > 0:
                yield min(rest, max(0.0, ends - time.monotonic()))
            came = yield self._request(call, ends)
            answer, error, wait = self._judged(call, came, patience)
            if answer is not None:
                if answer.status_code != 202 or call.until_ready is None:
                    return answer
                wait = _seconds(answer.headers.get("Retry-After")) or 1.0
                error = Unreachable("It is still being built: wait longer, or come again.")
                give_up_at = min(ends, begun + call.until_ready)
            wait = wait or _backoff(attempt)
            if wait < 0 or time.monotonic() + wait > give_up_at:
                raise error
            yield wait
            attempt += 1

    def _request(self, call: Call, ends: float) -> httpx2.Request:
        left = max(0.001, ends - time.monotonic())
        headers = {**self.settings["headers"], **call.headers}
        if call.body is not None:
            headers.setdefault("Content-Type", "application/json")
        connect, read = min(CONNECT_SECONDS, left), min(READ_SECONDS, left)
        timeout = {"connect": connect, "read": read, "write": read, "pool": connect}
        return httpx2.Request(
            call.method,
            self.base_url + call.path,
            params=dict(call.query) if call.query else None,
            content=call.body,
            headers=headers,
            extensions={"timeout": timeout},
        )

    def _judged(
        self, call: Call, came: Came, patience: float
    ) -> tuple[httpx2.Response | None, RecordsError, float | None]:
        """Return a good answer; else the error, and after how long to try again.

        None is as usual, below 0 never.
        """
        never = None if call.safe else -1.0
        if not isinstance(came, httpx2.Response):
            again = None if isinstance(came, _UNSENT) else never
            return None, self._unreachable(_reason(came)), again
        if came.headers.get("RateLimit-Remaining") == "0":
            # The window's end: this request was the last that it allows.
            reset = _seconds(came.headers.get("RateLimit-Reset"))
            self._resume_at = time.monotonic() + min(reset or 0.0, patience)
        if came.is_success:
            return came, RecordsError(), None
        if came.is_redirect:
            to = came.headers.get("Location", "elsewhere")
            elsewhere = (
                f"{self.base_url} leads to {to}: set SERVICE_BASE_URL to the service itself."
            )
            return None, RecordsError(elsewhere), -1.0
        refused = _read_problem(came)
        status, after = refused.status, refused.retry_after
        if status == 429 or (call.safe and status >= 500 and refused.slug not in _FINAL):
            return None, refused, after
        # The conflicts that end by themselves.
        if call.safe and status == 409 and (after is not None or refused.slug == _STILL_RUNNING):
            return None, refused, after
        return None, refused, -1.0

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(
            f"{self.base_url} cannot be reached: {why}. Is SERVICE_BASE_URL right, and is it up?"
        )


class Transport:
    """Carries exchanges out, and waits by `sleep`; threads and forked processes may share it."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        patience: float = 20.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.service = Service(base_url, key)
        self.base_url = self.service.base_url
        self.patience = patience
        self.sleep = sleep
        self._open()

    def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Return the answer of a `Call`, whose further fields are `options`.

        Raises `Problem` and `Unreachable`.
        """
        call = Call(method, path, **options)
        steps = self.service.exchange(call, self.patience)
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                found: httpx2.Response = end.value
                return found
            came = None
            if isinstance(step, float):
                self.sleep(step)
            else:
                came = self._attempt(step, call.stream)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx2.Response]:
        """Yield the answer of a `Call` whose body is still to be read."""
        answer = self.send(method, path, stream=True, **options)
        try:
            yield answer
        except httpx2.HTTPError:
            raise Unreachable(_BROKEN) from None
        finally:
            answer.close()

    def _attempt(self, request: httpx2.Request, stream: bool) -> Came:
        # A child has its parent's sockets: two would talk on one.
        if self._process != os.getpid():
            self._open()
        try:
            with _unlogged():
                answer = self._http.send(request, stream=stream)
                if stream and answer.status_code not in _WITH_CONTENT:
                    answer.read()
        except httpx2.HTTPError as error:
            return error
        return answer

    def _open(self) -> None:
        self._process = os.getpid()
        self._http = httpx2.Client(**self.service.settings)
        # Who forgets to close it leaves no socket open.
        self.close = weakref.finalize(self, _close, self._http)


class AsyncTransport:
    """Carries exchanges out on an event loop of asyncio's; `sleep` waits there."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        patience: float = 20.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.service = Service(base_url, key)
        self.base_url = self.service.base_url
        self.patience = patience
        self.sleep = sleep
        self._http: asyncio.Future[httpx2.AsyncClient] | None = None

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Return the answer of a `Call`, as `Transport.send` does."""
        call = Call(method, path, **options)
        steps = self.service.exchange(call, self.patience)
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                found: httpx2.Response = end.value
                return found
            came = None
            if isinstance(step, float):
                await self.sleep(step)
            else:
                came = await self._attempt(step, call.stream)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[httpx2.Response]:
        """Yield the answer of a `Call` whose body is still to be read."""
        answer = await self.send(method, path, stream=True, **options)
        try:
            yield answer
        except httpx2.HTTPError:
            raise Unreachable(_BROKEN) from None
        finally:
            await answer.aclose()

    async def _attempt(self, request: httpx2.Request, stream: bool) -> Came:
        if self._http is None:
            # Reading certificates takes a tenth of a second, which no event loop should stand.
            self._http = asyncio.get_running_loop().run_in_executor(None, self._open)
        # A task that is cancelled must not cancel what others wait for.
        http = await asyncio.shield(self._http)
        try:
            with _unlogged():
                answer = await http.send(request, stream=stream)
                if stream and answer.status_code not in _WITH_CONTENT:
                    await answer.aread()
        except httpx2.HTTPError as error:
            return error
        return answer

    def _open(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**self.service.settings)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            with _unlogged():
                await (await self._http).aclose()


@contextmanager
def _unlogged() -> Iterator[None]:
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


def _close(http: httpx2.Client) -> None:
    with _unlogged():
        http.close()


def _checked_url(text: str) -> str:
    parts = urlsplit(text)
    good = parts.scheme in ("http", "https") and parts.hostname and not parts.query
    # httpx2 would send a user's name in place of the key.
    if not good or parts.username is not None:
        raise RecordsError(
            "SERVICE_BASE_URL is no address of a service, such as https://records.example.com."
        )
    return text.rstrip("/")


def _backoff(attempt: int) -> float:
    """Return the wait before the next attempt: doubling, with jitter."""
    jitter = random.uniform(0.5, 1.0)  # noqa: S311  # no secret
    return jitter * min(0.25 * 2.0 ** min(attempt, 10), _LONGEST_BACKOFF)


def _read_problem(answer: httpx2.Response) -> Problem:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        # What stands before the service answers in its own way.
        body = {"title": f"HTTP status {answer.status_code}", "detail": answer.reason_phrase}
    body.setdefault("request_id", answer.headers.get("x-request-id"))
    return problem(answer.status_code, body, _seconds(answer.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _reason(error: Exception | None) -> str:
    """Say why no answer came; the cause is below what httpx2 says."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(each, socket.gaierror) for each in causes):
        return "its name is not known"
    refused = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
    if refused is not None:
        return f"TLS: {refused}"
    if isinstance(error, httpx2.ProxyError):
        return "the proxy of HTTP_PROXY, HTTPS_PROXY does not answer"
    if isinstance(error, httpx2.ConnectTimeout):
        return "it does not accept a connection"
    if isinstance(error, httpx2.TimeoutException):
        return "its answer takes too long"
    return "the connection is refused" if isinstance(error, _UNSENT) else "the connection broke"
