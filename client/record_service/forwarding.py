"""Events to a local URL, each once: from where the last run stopped, and then as they come."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Callable

from record_service import state, webhooks
from record_service.client import NOW, Client, Json
from record_service.errors import HistoryRolledBack, NotFound

TIMEOUT_SECONDS = 15.0
_LONGEST_BACKOFF = 5.0
_PRUNED = "history-pruned"
# What was forwarded last: an event that comes twice does so soon.
_REMEMBERED = 10_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS places (
    number INTEGER PRIMARY KEY, event_id TEXT UNIQUE, place TEXT
)
"""


_SECRETS = "CREATE TABLE IF NOT EXISTS secrets (whose TEXT PRIMARY KEY, secret TEXT NOT NULL)"


def own_secret(base_url: str, tenant_id: str) -> str:
    """Return this machine's secret for a tenant, which is made once."""
    whose = state.name(base_url, tenant_id)
    made = webhooks.PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    with closing(state.database("secrets.sqlite", _SECRETS)) as kept:
        kept.execute("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", (whose, made))
        found = kept.execute("SELECT secret FROM secrets WHERE whose = ?", (whose,))
        return str(found.fetchone()[0])


@dataclass(frozen=True)
class Answer:
    """What a receiver answered: its HTTP status, and after how many milliseconds."""

    status: int
    ms: int


class Position:
    """Where a listener is: the place in the feed, and which events after it were forwarded.

    One process at a time has it. Raises `RecordsError` while another does.
    """

    def __init__(self, *identity: str) -> None:
        self._rows = state.database(f"listen-{state.name(*identity)}.sqlite", _SCHEMA, alone=True)

    @property
    def place(self) -> str | None:
        """The `next_after` of the last page that was forwarded whole."""
        row = self._rows.execute("SELECT place FROM places WHERE number = 0").fetchone()
        return str(row[0]) if row else None

    def move(self, place: str) -> None:
        """Note that everything before a place was forwarded."""
        self._rows.execute("INSERT OR REPLACE INTO places VALUES (0, NULL, ?)", (place,))
        self._rows.execute(
            "DELETE FROM places WHERE number > 0"
            " AND number <= (SELECT max(number) FROM places) - ?",
            (_REMEMBERED,),
        )

    def has(self, event_id: str) -> bool:
        """Say whether an event was forwarded."""
        found = self._rows.execute("SELECT 1 FROM places WHERE event_id = ?", (event_id,))
        return found.fetchone() is not None

    def add(self, event_id: str) -> None:
        """Note that an event was forwarded."""
        self._rows.execute("INSERT INTO places (event_id) VALUES (?)", (event_id,))

    def close(self) -> None:
        """Let another process have it."""
        self._rows.close()


class Receiver:
    """A local URL that gets events, signed with `secret`; `wait` is told why it must wait."""

    def __init__(self, url: str, secret: str, wait: Callable[[str, float], None]) -> None:
        self._url = url
        self._secret = secret
        self._wait = wait
        import httpx2  # noqa: PLC0415  # slow to load, and most commands need none of it

        self._no_answer = httpx2.TransportError
        # No proxy of this machine has a part in it.
        self._http = httpx2.Client(trust_env=False, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def send(self, event: Json) -> Answer:
        """Send an event until it is answered, whatever the answer; its body is not read."""
        body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
        attempt = 0
        while True:
            attempt += 1
            started = time.monotonic()
            signed = webhooks.sign(self._secret, event["id"], int(time.time()), body)
            sent = {
                **signed,
                "content-type": "application/json",
                "user-agent": "record-service-client",
                "x-service-attempt": str(attempt),
            }
            try:
                with self._http.stream("POST", self._url, content=body, headers=sent) as answer:
                    return Answer(answer.status_code, round((time.monotonic() - started) * 1000))
            except self._no_answer:
                backoff = min(0.25 * 2.0 ** min(attempt, 10), _LONGEST_BACKOFF)
                self._wait(f"{self._url} does not answer; waiting for it.", backoff)


def begin(client: Client, position: Position) -> None:
    """Fix where a new listener begins: here. One that was there before goes on where it stopped."""
    if position.place is None:
        _, place = next(client.follow(NOW))
        position.move(place)


def events(
    client: Client, position: Position, types: frozenset[str], told: Callable[[str], None]
) -> Iterator[Json | None]:
    """Yield each event of these types (none: all) that was not forwarded yet, for ever.

    None is yielded after each page, also an empty one. The caller notes an event by `position.add`.
    `told` is called where events were missed for good, or the service lost some that came.
    """
    after = position.place
    only = next(iter(types)) if len(types) == 1 else None
    while True:
        try:
            for page, place in client.follow(after, only):
                for event in page:
                    if (not types or event["type"] in types) and not position.has(event["id"]):
                        yield event
                position.move(place)
                yield None
        except HistoryRolledBack as lost:  # noqa: PERF203  # it seldom happens
            told(str(lost))
            after = str(lost.next_after)
        except NotFound as gone:
            if gone.slug != _PRUNED:
                raise
            told("Some events were missed for good: they are older than the history kept.")
            after = None
