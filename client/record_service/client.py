"""`Client`: what the service can do, as methods. The command `record-service` stands on it alone.

Each method returns the JSON of the answer. Lists are iterators that fetch pages as they go.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable

import requests

from record_service.errors import RecordsError, Unreachable
from record_service.transport import Transport

Json = dict[str, Any]
PAGE = 200
NOW = "now"
_LONG_POLL = 20


class Client:
    """A caller of one service with one key.

    `base_url` and `key` are by default what `SERVICE_BASE_URL` and `SERVICE_API_KEY` say. What is
    safe to repeat is repeated for `patience` seconds, as Retry-After and RateLimit say; `sleep`
    waits. Every method raises `Problem` where the service refuses, by its kind, and `Unreachable`.
    Threads may share it.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        patience: float = 20.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        base_url = base_url or os.environ.get("SERVICE_BASE_URL", "").strip()
        key = key or os.environ.get("SERVICE_API_KEY", "").strip()
        if not base_url:
            raise RecordsError(
                "Set SERVICE_BASE_URL to the service's address, such as http://127.0.0.1:8000."
            )
        if not key:
            raise RecordsError("Set SERVICE_API_KEY to an API key.")
        self.transport = Transport(base_url, key, patience, sleep)

    @property
    def base_url(self) -> str:
        """The service's address, without a slash at its end."""
        return self.transport.base_url

    # --- any route ---

    def get(self, path: str, **query: Any) -> Json:
        """GET a path, such as `/v1/records`; queries that are None are left out."""
        return _json(self.transport.send("GET", path, query=_given(query)))

    def post(
        self, path: str, body: Mapping[str, Any] | bytes | None = None, key: str | None = None
    ) -> Json:
        """POST a body, as JSON unless it is bytes: once, however often it is tried.

        `key` is its Idempotency-Key, by default one of this call's own.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return _json(self.transport.send("POST", path, body=_body(body), headers=headers))

    def create(self, path: str, body: Mapping[str, Any] | bytes | None = None) -> Json:
        """POST what is to be made, as `post` does."""
        return self.post(path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """PATCH a path."""
        return _json(self.transport.send("PATCH", path, body=_body(body)))

    def delete(self, path: str, **query: Any) -> None:
        """DELETE a path."""
        self.transport.send("DELETE", path, query=_given(query))

    def pages(self, path: str, **query: Any) -> Iterator[Json]:
        """Yield the pages of a list, each `{"data": […], "next_cursor": …}`."""
        query.setdefault("limit", PAGE)
        while True:
            page = self.get(path, **query)
            yield page
            query["cursor"] = page.get("next_cursor")
            if query["cursor"] is None:
                return

    def rows(self, path: str, **query: Any) -> Iterator[Json]:
        """Yield every row of a list."""
        for page in self.pages(path, **query):
            yield from page["data"]

    @contextmanager
    def download(
        self, path: str, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Iterator[requests.Response]:
        """Yield an answer whose body is still to be read, in pieces of any size."""
        with self.transport.send(
            "GET", path, query=_given(query), headers=headers, stream=True
        ) as answer:
            try:
                yield answer
            except requests.RequestException:
                raise Unreachable("The connection broke before the end of the answer.") from None

    # --- what agents do ---

    def whoami(self) -> Json:
        """Return the key in use, with its tenant."""
        return self.get("/v1/keys/self")

    def open_session(self, agent_id: str, principal: str, **fields: Any) -> Json:
        """Open a session of an agent on behalf of a principal; `title` and `metadata` are free."""
        body = {"agent_id": agent_id, "principal": principal, **_given(fields)}
        return self.create("/v1/sessions", body)

    def complete_session(self, session_id: str, outcome: str, summary: str | None = None) -> Json:
        """Complete a session as `succeeded`, `failed` or `cancelled`."""
        body = _given({"outcome": outcome, "summary": summary})
        return self.post(f"/v1/sessions/{session_id}/complete", body)

    def add_record(self, record: Mapping[str, Any] | bytes, key: str | None = None) -> Json:
        """Add a record; with the same `key` (its Idempotency-Key) it is added once in 24 hours."""
        return self.post("/v1/records", record, key)

    def add_records(
        self, records: Sequence[Mapping[str, Any]], *, atomic: bool = False
    ) -> list[Json]:
        """Add up to 1000 records, 8 MiB in all, in one request; return of each what became of it.

        That is the record, or `{"problem": {"status", "type", "errors"}}`. A record may have an
        `idempotency_key`, with which it is added once in 24 hours. With `atomic` all are added or
        none, and a problem is raised.
        """
        path = "/v1/records/batch" + ("?atomic=true" if atomic else "")
        added: list[Json] = self.post(path, {"records": list(records)})["data"]
        return added

    def add_finding(self, **fields: Any) -> Json:
        """Add a finding: `rule`, `severity`, `title`, and `session_id` or `record_id`."""
        return self.create("/v1/findings", _given(fields))

    def records(self, **filters: Any) -> Iterator[Json]:
        """Yield records, newest first or as `q` ranks them."""
        return self.rows("/v1/records", **filters)

    def findings(self, **filters: Any) -> Iterator[Json]:
        """Yield findings, newest first."""
        return self.rows("/v1/findings", **filters)

    def events(
        self, after: str | None = None, event_type: str | None = None
    ) -> Iterator[tuple[list[Json], str]]:
        """Follow all events for ever: yield pages, oldest first, each with the place to go on from.

        `after` is such a place, `now`, or None for the oldest kept. A page may be empty, and in
        rare cases an event comes twice.
        """
        while True:
            wait = None if after == NOW else _LONG_POLL
            page = self.get("/v1/events", after=after, type=event_type, limit=PAGE, wait=wait)
            after = page["next_after"]
            yield page["data"], page["next_after"]


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _body(body: Mapping[str, Any] | bytes | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _json(answer: requests.Response) -> Json:
    try:
        read: Json = answer.json()
    except ValueError:
        raise RecordsError(
            "The answer is not JSON: SERVICE_BASE_URL is not the address of a record-service."
        ) from None
    return read
