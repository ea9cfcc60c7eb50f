"""The catch-up feed: a webhook's events by sequence number, for a receiver that was down.

Sequences have no gaps: a missing number was pruned, and the response says so. Rows are numbered
first, under the lane's lock, so a reader of all events after N misses none. A reader whose numbers
are of an epoch that ended, or that has one not given yet, is told where to begin.
"""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app.core import epochs
from app.core.delivery.history import delivery_history
from app.core.delivery.history.delivery_history import COLUMNS, Delivery
from app.core.delivery.lanes import lanes
from app.core.epochs import Epoch
from app.database import cursor
from app.errors import Gone, HistoryRolledBack

# 200 events of 256 KiB would be 50 MiB: a page ends at 4 MiB, but has at least one row.
MOST_PAYLOAD = 4 * 1024 * 1024


@dataclass(frozen=True)
class Entry(Delivery):
    """An event of the feed: its delivery, its request body, and the bytes before it in the page."""

    payload: bytes = b""
    bytes_before: int = 0


_NEWEST = "SELECT next_sequence - 1 FROM lanes WHERE tenant_id = %s AND webhook_id = %s"

# A row of history, one that is open, and one that has its number from a claim: few at a time.
_PART = """
(SELECT {columns} FROM {table}
  WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
    AND {numbered} > %(after)s AND {which} ORDER BY {numbered} LIMIT %(limit)s)
"""
_ROW = """
id, webhook_id, event_id, event_type, kind, sequence, replay_of, job_id, status, attempts,
"""
_OPEN = {
    "table": "open_deliveries",
    "columns": f"{_ROW} coalesce(lease_until, next_attempt_at), created_at, NULL::timestamptz",
}
_PARTS = " UNION ALL ".join(
    _PART.format(**part)
    for part in (
        {
            "table": "ended_deliveries",
            "columns": f"{_ROW} NULL::timestamptz AS next_attempt_at, created_at, finished_at",
            "numbered": "sequence",
            "which": "kind = 'event'",
        },
        _OPEN | {"numbered": "feed_sequence", "which": "NOT fresh"},
        _OPEN | {"numbered": "sequence", "which": "fresh AND priority IN (0, 1)"},
    )
)
_AFTER = f"""
SELECT * FROM (
    SELECT {COLUMNS}, e.payload,
           sum(length(e.payload)) OVER (ORDER BY d.sequence) - length(e.payload) AS bytes_before
      FROM (SELECT * FROM ({_PARTS}) AS parts ORDER BY sequence LIMIT %(limit)s) AS d
      JOIN events AS e
        ON e.tenant_id = (SELECT %(tenant)s::uuid) AND e.id = d.event_id) AS page
 WHERE bytes_before < {MOST_PAYLOAD}
 ORDER BY sequence
"""


# Numbers are given in the order of ids, but for what waited meanwhile: among so many is the least.
_FIRST_APART = " UNION ALL ".join(
    f"""(SELECT sequence FROM {table}
          WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
            AND kind = 'event' AND sequence IS NOT NULL AND id >= %(first)s
          ORDER BY id LIMIT 1000)"""
    for table in ("ended_deliveries", "open_deliveries")
)


def after(
    session: Session,
    tenant_id: UUID,
    webhook_id: UUID,
    sequence: int,
    *,
    limit: int,
    epoch: UUID | None = None,
) -> tuple[list[Entry], Epoch]:
    """Return up to `limit` events that follow `sequence`, oldest first, and the present epoch.

    None when it is the newest. `epoch` is that in which the caller knows `sequence`, if it says so.
    Raises `HistoryRolledBack` when that one has ended, or no event has this number, `Gone` when the
    next event is older than the history kept. Do not call it in a snapshot transaction: it may
    number rows first.
    """
    now = epochs.present(session)
    newest = _newest(session, tenant_id, webhook_id)
    # One round is enough: it numbers more rows than a page holds.
    if newest < sequence + limit and lanes.number(session, tenant_id, webhook_id):
        newest = _newest(session, tenant_id, webhook_id)
    if sequence > newest or epoch not in (None, now.id):
        raise _rolled_back(session, tenant_id, webhook_id, newest, now, epoch)
    values = {"tenant": tenant_id, "webhook": webhook_id, "after": sequence, "limit": limit}
    rows = cursor(session, class_row(Entry)).execute(_AFTER, values).fetchall()
    unbroken = [row for place, row in enumerate(rows, sequence + 1) if row.sequence == place]
    if not unbroken and sequence < newest:
        first = rows[0].sequence if rows and rows[0].sequence else newest + 1
        raise Gone(
            "The event that follows is older than the history kept. The first one kept has the "
            f"sequence {first}: go on with after={first - 1}.",
            first_available=first,
        )
    return delivery_history.listed(session, tenant_id, unbroken), now


def represent(entry: Entry) -> dict[str, Any]:
    """Return the JSON representation of one event: its delivery with the payload."""
    return {**delivery_history.represent(entry), "payload": json.loads(entry.payload)}


def _newest(session: Session, tenant_id: UUID, webhook_id: UUID) -> int:
    return cursor(session, scalar_row).execute(_NEWEST, (tenant_id, webhook_id)).fetchone() or 0


def _rolled_back(
    session: Session, tenant_id: UUID, webhook_id: UUID, newest: int, now: Epoch, known: UUID | None
) -> HistoryRolledBack:
    """Return the error with the number up to which another epoch has the same events."""
    first = epochs.first_apart(session, known)
    begin = 0
    if first.int:
        values = {"tenant": tenant_id, "webhook": webhook_id, "first": first}
        query = f"SELECT min(sequence) - 1 FROM ({_FIRST_APART}) AS apart"
        row = cursor(session, scalar_row).execute(query.encode(), values).fetchone()
        begin = newest if row is None else row
    return HistoryRolledBack(
        f"The newest event has the sequence {newest} in the epoch {now.name}, which is the history "
        f"of now: go on with after={begin} and epoch={now.name}.",
        {"epoch": now.name, "next_after": begin},
    )
