"""`Client` and `AsyncClient`: what the service can do, as methods, without and with `await`.

Their verbs, `client.findings.create(…)`, are those of the service's OpenAPI document (`verbs`).
Here is what these stand on, and any route by its path.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Union
from urllib.parse import quote

from record_service import values
from record_service.errors import RecordsError
from record_service.operations import Operation
from record_service.verbs import AsyncVerbs, Verbs

# httpx2 is loaded with the first client: it is most of what an import takes.
if TYPE_CHECKING:
    import httpx2
    from typing_extensions import Self

Json = dict[str, Any]
Body = Union[Mapping[str, Any], bytes, None]
PAGE = 200
NOW = "now"
# For how many seconds the answer of a build is waited for.
BUILD_SECONDS = 120.0
_LONG_POLL = 20


class Client(Verbs):
    """A caller of one service with one key.

    `base_url` and `key` are by default what `SERVICE_BASE_URL` and `SERVICE_API_KEY` say. What is
    safe to repeat is repeated for `patience` seconds, as Retry-After and RateLimit say; `sleep`
    waits. Every method raises `Problem` where the service refuses, by its kind, and `Unreachable`.
    What JSON has no form for is converted as `values` says, or refused with its path (`Unfit`).
    Each verb takes `timeout`, the seconds for all its attempts; a POST takes `idempotency_key`, by
    default one of the call's own. Threads and forked processes may share a client.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        patience: float = 20.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        from record_service import transport  # noqa: PLC0415  # loads httpx2

        self.transport = transport.Transport(base_url, key, patience, sleep)
        self._add_verbs(self._perform)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    @property
    def base_url(self) -> str:
        """The service's address, without a slash at its end."""
        return self.transport.base_url

    def get(self, path: str, *, timeout: float | None = None, **query: Any) -> Json:
        """GET a path, such as `/v1/records`; queries that are None are left out."""
        return _json(self.transport.send(**_call("GET", path, query, timeout=timeout)))

    def post(
        self, path: str, body: Body = None, key: str | None = None, *, timeout: float | None = None
    ) -> Json:
        """POST a body, as JSON unless it is bytes: once, however often it is tried.

        `key` is its Idempotency-Key, by default one of this call's own.
        """
        return _json(
            self.transport.send(**_call("POST", path, body=body, key=key, timeout=timeout))
        )

    def patch(self, path: str, body: Body) -> Json:
        """PATCH a path."""
        return _json(self.transport.send(**_call("PATCH", path, body=body)))

    def delete(self, path: str, **query: Any) -> None:
        """DELETE a path."""
        self.transport.send(**_call("DELETE", path, query))

    def pages(self, path: str, *, timeout: float | None = None, **query: Any) -> Iterator[Json]:
        """Yield the pages of a list, each `{"data": […], "next_cursor": …}`."""
        query.setdefault("limit", PAGE)
        while True:
            page = self.get(path, timeout=timeout, **query)
            yield page
            query["cursor"] = page.get("next_cursor")
            if query["cursor"] is None:
                return

    def rows(self, path: str, **query: Any) -> Iterator[Json]:
        """Yield every row of a list."""
        for page in self.pages(path, **query):
            yield from page["data"]

    def download(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        until_ready: float | None = None,
        **query: Any,
    ) -> AbstractContextManager[httpx2.Response]:
        """Yield an answer whose body is still to be read, in pieces of any size.

        With `until_ready` one that is still being built (202) is waited for, so many seconds.
        """
        call = _call("GET", path, query, headers=headers, until_ready=until_ready)
        return self.transport.stream(**call)

    def follow(
        self, after: str | None = NOW, event_type: str | None = None, *, to_end: bool = False
    ) -> Iterator[tuple[list[Json], str]]:
        """Follow all events for ever: yield pages, oldest first, each with the place to go on from.

        `after` is such a place, `now`, or None for the oldest kept. A page may be empty, and in
        rare cases an event comes twice. With `to_end` nothing is waited for: an empty page is the
        last.
        """
        page = None
        while page is None or page["data"] or not to_end:
            page = self.get("/v1/events", **_place(after, event_type, to_end))
            after = page["next_after"]
            yield page["data"], page["next_after"]

    def _perform(self, operation: Operation, ids: Sequence[str], **given: Any) -> Any:
        if operation.answer == "rows":
            return self.rows(_filled(operation, ids), **_page(given))
        return _read(operation, self.transport.send(**_operation(operation, ids, **given)))


class AsyncClient(AsyncVerbs):
    """`Client` for an event loop: every method is awaited, and lists are async iterators.

    It belongs to the event loop that uses it first. A call that is cancelled ends at once.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        patience: float = 20.0,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        from record_service import transport  # noqa: PLC0415  # loads httpx2 and asyncio

        waits = {} if sleep is None else {"sleep": sleep}
        self.transport = transport.AsyncTransport(base_url, key, patience, **waits)
        self._add_verbs(self._perform)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()

    @property
    def base_url(self) -> str:
        """The service's address, without a slash at its end."""
        return self.transport.base_url

    async def get(self, path: str, *, timeout: float | None = None, **query: Any) -> Json:
        """GET a path, as `Client.get` does."""
        return _json(await self.transport.send(**_call("GET", path, query, timeout=timeout)))

    async def post(
        self, path: str, body: Body = None, key: str | None = None, *, timeout: float | None = None
    ) -> Json:
        """POST a body, as `Client.post` does."""
        call = _call("POST", path, body=body, key=key, timeout=timeout)
        return _json(await self.transport.send(**call))

    async def patch(self, path: str, body: Body) -> Json:
        """PATCH a path."""
        return _json(await self.transport.send(**_call("PATCH", path, body=body)))

    async def delete(self, path: str, **query: Any) -> None:
        """DELETE a path."""
        await self.transport.send(**_call("DELETE", path, query))

    async def rows(
        self, path: str, *, timeout: float | None = None, **query: Any
    ) -> AsyncIterator[Json]:
        """Yield every row of a list."""
        query.setdefault("limit", PAGE)
        while True:
            page = await self.get(path, timeout=timeout, **query)
            for row in page["data"]:
                yield row
            query["cursor"] = page.get("next_cursor")
            if query["cursor"] is None:
                return

    def download(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        until_ready: float | None = None,
        **query: Any,
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Yield an answer whose body is still to be read, as `Client.download` does."""
        call = _call("GET", path, query, headers=headers, until_ready=until_ready)
        return self.transport.stream(**call)

    async def follow(
        self, after: str | None = NOW, event_type: str | None = None, *, to_end: bool = False
    ) -> AsyncIterator[tuple[list[Json], str]]:
        """Follow all events for ever, or to their end, as `Client.follow` does."""
        page = None
        while page is None or page["data"] or not to_end:
            page = await self.get("/v1/events", **_place(after, event_type, to_end))
            after = page["next_after"]
            yield page["data"], page["next_after"]

    def _perform(self, operation: Operation, ids: Sequence[str], **given: Any) -> Any:
        if operation.answer == "rows":
            return self.rows(_filled(operation, ids), **_page(given))

        async def performed() -> Any:
            return _read(operation, await self.transport.send(**call))

        call = _operation(operation, ids, **given)
        return performed()


def _call(
    method: str,
    path: str,
    query: Mapping[str, Any] | None = None,
    *,
    body: Body = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    sent = dict(headers or {})
    if method == "POST":
        sent["Idempotency-Key"] = key or uuid.uuid4().hex
        if not (sent["Idempotency-Key"].isascii() and sent["Idempotency-Key"].isprintable()):
            raise RecordsError("An idempotency key has visible ASCII characters alone.")
    given = {name: _plain(each) for name, each in (query or {}).items() if each is not None}
    written = (
        body
        if body is None or isinstance(body, bytes)
        else values.encode(values.fit(body, strict=True)).encode()
    )
    return {
        "method": method,
        "path": path,
        "query": given,
        "body": written,
        "headers": sent,
        **options,
    }


def _operation(
    operation: Operation,
    ids: Sequence[str],
    *,
    timeout: float | None = None,
    idempotency_key: str | None = None,
    **given: Any,
) -> dict[str, Any]:
    query, body = given, None
    if operation.body:
        query = {name: given.pop(name) for name in operation.query if name in given}
        body = given
    return _call(
        operation.method,
        _filled(operation, ids),
        query,
        body=body,
        key=idempotency_key,
        timeout=timeout,
        until_ready=BUILD_SECONDS if operation.answer == "bytes" else None,
    )


def _filled(operation: Operation, ids: Sequence[str]) -> str:
    """Return an operation's path with these ids in it."""
    parts = operation.path.split("{")
    if len(parts) != len(ids) + 1:
        raise TypeError(f"{operation.method} {operation.path} takes {len(parts) - 1} ids.")
    rests = (part.partition("}")[2] for part in parts[1:])
    return parts[0] + "".join(quote(str(each), safe="") + rest for each, rest in zip(ids, rests))


def _page(given: dict[str, Any]) -> dict[str, Any]:
    return {"limit": given.pop("page_size", PAGE), **given}


def _place(after: str | None, event_type: str | None, to_end: bool) -> dict[str, Any]:
    wait = None if to_end or after == NOW else _LONG_POLL
    return {"after": after, "type": event_type, "limit": PAGE, "wait": wait}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _read(operation: Operation, answer: httpx2.Response) -> Any:
    if operation.answer == "json":
        return _json(answer)
    if operation.answer == "none":
        return None
    return answer.content if operation.answer == "bytes" else answer.text


def _json(answer: httpx2.Response) -> Json:
    try:
        read: Json = answer.json()
    except ValueError:
        raise RecordsError(
            "The answer is not JSON: SERVICE_BASE_URL is not the address of a record-service."
        ) from None
    return read
