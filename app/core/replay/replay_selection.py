"""The selection of a bulk replay: events that did not arrive, as of one moment.

These are events of one webhook whose delivery failed or was cancelled, or that were not sent while
it was disabled, without those already replayed or about to be. The moment is part of the selection:
preview, total and job agree.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery.history import decisions
from app.core.delivery.history.delivery_filters import earliest_id, latest_id
from app.database import cursor, database_now


class Status(enum.StrEnum):
    """Why an event did not arrive: its delivery's end, or that there was none (`skipped`)."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Wanted:
    """What a caller asks to be sent again; `until` is not included."""

    statuses: frozenset[Status]
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Selection:
    """What is wanted, of one webhook, as of one moment."""

    webhook_id: UUID
    wanted: Wanted
    as_of: datetime

    @classmethod
    def now(cls, session: Session, webhook_id: UUID, wanted: Wanted) -> "Selection":
        """Fix a selection as of the database's now."""
        return cls(webhook_id, wanted, database_now(session))

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> "Selection":
        """Read a selection back from a job's arguments."""
        webhook_id = ids.parse("whk", args["webhook_id"])
        if webhook_id is None:
            raise ValueError("a bulk replay's arguments name no webhook")
        wanted = Wanted(
            frozenset(map(Status, args["status"])),
            args["since"] and datetime.fromisoformat(args["since"]),
            args["until"] and datetime.fromisoformat(args["until"]),
        )
        return cls(webhook_id, wanted, datetime.fromisoformat(args["as_of"]))

    def to_args(self) -> dict[str, Any]:
        """Return the selection as a job's arguments."""
        wanted = self.wanted
        return {
            "webhook_id": ids.text("whk", self.webhook_id),
            "status": sorted(status.value for status in wanted.statuses),
            "since": wanted.since and rfc3339(wanted.since),
            "until": wanted.until and rfc3339(wanted.until),
            "as_of": rfc3339(self.as_of),
        }

    def tables(self) -> list[str]:
        """Return the names of the tables to walk over, in order."""
        undelivered = self.wanted.statuses - {Status.SKIPPED}
        skipped = self.wanted.statuses & {Status.SKIPPED}
        return ["deliveries"] * bool(undelivered) + ["events"] * bool(skipped)


@dataclass(frozen=True)
class Source:
    """One event that did not arrive, and whether a replay has brought it or is about to.

    `selected` is false where that was so already as of the selection.
    """

    id: UUID
    event_id: UUID
    sequence: int | None
    replay_of: UUID | None
    selected: bool
    settled: bool


# What each table to walk over contributes, in the order of its ids.
_SOURCES = {
    "deliveries": """
SELECT d.id, d.event_id, d.sequence, d.id AS replay_of
  FROM deliveries AS d
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = (SELECT %(webhook)s::uuid)
   AND d.kind = 'event' AND d.status = ANY (%(statuses)s) AND d.finished_at <= %(as_of)s
   AND d.created_at >= %(since)s AND d.created_at < %(until)s
   AND d.id > %(after)s AND d.id >= %(since_id)s AND d.id < %(until_id)s
""",
    "events": """
SELECT e.id, e.id AS event_id, NULL::bigint AS sequence, NULL::uuid AS replay_of
  FROM events AS e
 WHERE e.tenant_id = (SELECT %(tenant)s::uuid) AND e.any_disabled
   AND position(%(disabled)s IN e.decisions) %% 17 = 1
   AND e.created_at >= %(since)s AND e.created_at < %(until)s
   AND e.id > %(after)s AND e.id >= %(since_id)s AND e.id < %(until_id)s
""",
}

_REPLAYED = """
EXISTS (SELECT 1 FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.webhook_id = (SELECT %(webhook)s::uuid)
           AND r.kind = 'replay' AND r.event_id = source.event_id AND {})
"""
_SETTLED_THEN = _REPLAYED.format(
    "r.created_at <= %(as_of)s"
    " AND (r.status = 'succeeded' OR r.finished_at IS NULL OR r.finished_at > %(as_of)s)"
)
_SETTLED_NOW = _REPLAYED.format("(r.status = 'succeeded' OR r.finished_at IS NULL)")


def count(session: Session, tenant_id: UUID, selection: Selection) -> int:
    """Return how many events a selection holds."""
    values = _values(tenant_id, selection)
    found = 0
    for table in selection.tables():
        query = f"SELECT count(*) FROM ({_SOURCES[table]}) AS source WHERE NOT {_SETTLED_THEN}"
        row = cursor(session).execute(query, values).fetchone()
        found += int(row[0]) if row else 0
    return found


def pick(
    session: Session, tenant_id: UUID, selection: Selection, table: str, *, after: UUID, limit: int
) -> list[Source]:
    """Return the next sources of one table, in the order of their ids, behind the id `after`."""
    found = cursor(session, class_row(Source)).execute(
        f"SELECT source.*, NOT {_SETTLED_THEN} AS selected, {_SETTLED_NOW} AS settled"
        f" FROM ({_SOURCES[table]} ORDER BY id LIMIT %(limit)s) AS source ORDER BY id",
        {**_values(tenant_id, selection), "after": after, "limit": limit},
    )
    return found.fetchall()


def _values(tenant_id: UUID, selection: Selection) -> dict[str, Any]:
    wanted, as_of = selection.wanted, selection.as_of
    since = wanted.since or datetime.fromtimestamp(0, UTC)
    until = min(wanted.until or as_of, as_of)
    return {
        "tenant": tenant_id,
        "webhook": selection.webhook_id,
        # In the words of the partial index: with another status among them it would not serve.
        "statuses": sorted(status.value for status in wanted.statuses - {Status.SKIPPED}),
        "disabled": selection.webhook_id.bytes + bytes([decisions.DISABLED]),
        "since": since,
        "since_id": earliest_id(since),
        "until": until,
        "until_id": latest_id(until),
        "as_of": as_of,
        "after": UUID(int=0),
    }
