"""The event feed: all events of a tenant, for readers without a webhook; it skips none.

Ids encode time, but transactions commit out of order. So a position is an id and a snapshot. A page
has events up to the id whose transaction the snapshot did not see (late events), then the events
after the id.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core import epochs, partitions
from app.core.callers import Caller
from app.database import Tx, cursor
from app.errors import Gone, HistoryRolledBack

# Most bytes of payload in a page, which has at least one row.
MOST_PAYLOAD = 4 * 1024 * 1024
# Most events that a filtered page reads; it may return none of them.
MOST_READ = 1000
# An id is generated before its transaction writes, which may wait for a connection (10 s) and a
# lock (2 s); also, the clocks of hosts differ.
_BEFORE_WRITING = timedelta(seconds=60)
_FIRST = UUID(int=0)


@dataclass(frozen=True)
class Position:
    """A reader's position: it has read all events up to `through` that `snapshot` sees.

    Uncommitted events have ids after `floor`. `late` is the last id of a page that ended among late
    events; `seen` is then the snapshot of the first such page. All are of `epoch`; "" of any.
    """

    through: UUID
    snapshot: str
    floor: UUID
    late: UUID = _FIRST
    seen: str = ""
    epoch: str = ""

    def text(self) -> str:
        """Return the position as text, for `read`."""
        places = (self.through.hex, self.floor.hex, self.late.hex)
        return " ".join((*places, self.snapshot, self.seen, self.epoch))

    @classmethod
    def read(cls, text: str) -> "Position":
        """Parse the result of `text`; raises `ValueError`."""
        through, floor, late, snapshot, seen, epoch = text.split(" ")
        return cls(UUID(through), snapshot, UUID(floor), UUID(late), seen, epoch)


class Found(NamedTuple):
    """An event; `is_late`: it was committed after events with later ids were read."""

    id: UUID
    type: str
    payload: bytes
    is_late: bool


@dataclass(frozen=True)
class Page:
    """A page of events, and the position after it. `read` also counts events filtered out."""

    events: Sequence[Found]
    position: Position
    read: int


_NOW = """
SELECT pg_current_snapshot()::text, clock_timestamp(),
       (SELECT min(xact_start) FROM pg_stat_activity
         WHERE datname = current_database() AND backend_xid IS NOT NULL)
"""
_NEWEST = "SELECT id FROM stored_events WHERE tenant_id = %s ORDER BY id DESC LIMIT 1"

_LATE = """
SELECT id, type, payload, written_by FROM events
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND id > %(from)s AND id <= %(through)s
   AND NOT pg_visible_in_snapshot(written_by::text::xid8, %(snapshot)s::pg_snapshot)
 ORDER BY id LIMIT %(limit)s
"""
_AFTER = """
SELECT id, type, payload, written_by FROM events
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND id > %(through)s ORDER BY id LIMIT %(limit)s
"""
# PostgreSQL drops the rows beyond a page's bytes: a filtered page reads 1,000 events.
_PAGE = f"""
SELECT id, type, payload, is_late FROM (
    SELECT id, type, payload, is_late,
           sum(length(payload)) OVER (ORDER BY NOT is_late, id) - length(payload) AS bytes_before
      FROM (SELECT *, true AS is_late FROM ({_LATE}) AS late
            UNION ALL SELECT *, false FROM ({_AFTER}) AS following) AS found
     ORDER BY NOT is_late, id LIMIT %(limit)s) AS page
 WHERE bytes_before < {MOST_PAYLOAD} ORDER BY NOT is_late, id
"""
_ANY = f"SELECT EXISTS ({_LATE}) OR EXISTS ({_AFTER})"


def beginning() -> Position:
    """Return the position before the oldest event kept."""
    return Position(_FIRST, "1:1:", _FIRST)


def present(session: Session, caller: Caller) -> Position:
    """Return the position after the newest event."""
    snapshot, floor = _snapshot(session)
    newest = cursor(session, scalar_row).execute(_NEWEST, (caller.tenant_id,)).fetchone()
    return Position(newest or _FIRST, snapshot, floor, epoch=epochs.present(session).name)


def page(
    session: Session, caller: Caller, after: Position, event_type: str | None, limit: int
) -> Page:
    """Return up to `limit` events that follow a position; call it in a snapshot transaction.

    A pinned caller gets those of its agent and principal. Raises `Gone` when the next event is
    older than the history kept, and `HistoryRolledBack` for a position in an epoch that has ended,
    with the text of the position to go on from.
    """
    snapshot, floor = _snapshot(session)
    after = _in_present_epoch(session, after, snapshot)
    kept_from = ids.earliest_at(partitions.begins_at(session))
    if _FIRST < after.through < kept_from:
        raise Gone(
            "The event that follows is older than the history kept. Begin anew without after."
        )
    is_filtered = event_type is not None or caller.pin is not None
    most = MOST_READ if is_filtered else limit
    rows = cursor(session).execute(_PAGE, _values(caller.tenant_id, after, most)).fetchall()
    read = [Found._make(row) for row in rows]
    if after.seen:
        read = [row for row in read if row.is_late]
        if not read:
            anew = Position(after.through, after.seen, after.floor, epoch=after.epoch)
            return page(session, caller, anew, event_type, limit)

    def is_wanted(found: Found) -> bool:
        if event_type is not None and found.type != event_type:
            return False
        if caller.pin is None:
            return True
        data = json.loads(found.payload)["data"]
        of = (ids.parse("agt", str(data.get("agent_id"))), data.get("principal"))
        return of == (caller.pin.agent_id, caller.pin.principal)

    wanted = [row for row in read if is_wanted(row)][:limit]
    if len(wanted) == limit and is_filtered:
        read = read[: read.index(wanted[-1]) + 1]
    following = replace(_following(after, snapshot, floor, read), epoch=after.epoch)
    return Page(wanted, following, len(read))


def any_after(tx: Tx, tenant_id: UUID, position: Position) -> bool:
    """Say whether a tenant has an event after a position: a cheap check for long polling."""
    return bool(cursor(tx, scalar_row).execute(_ANY, _values(tenant_id, position, 1)).fetchone())


def represent(found: Found) -> dict[str, Any]:
    """Return an event's JSON representation, as receivers get it."""
    body: dict[str, Any] = json.loads(found.payload)
    return body


def _following(after: Position, snapshot: str, floor: UUID, read: Sequence[Found]) -> Position:
    """Return the position after a page.

    While late events may be left, the old snapshot stays. An empty page advances to the floor, so
    the position of a long-waiting reader does not fall behind the history kept.
    """
    if read and read[-1].is_late:
        seen = after.seen or snapshot
        return Position(after.through, after.snapshot, after.floor, read[-1].id, seen)
    return Position(read[-1].id if read else max(after.through, floor), snapshot, floor)


def _values(tenant_id: UUID, after: Position, limit: int) -> dict[str, Any]:
    return {
        "tenant": tenant_id,
        "from": max(after.floor, after.late),
        "through": after.through,
        "snapshot": after.snapshot,
        "limit": limit,
    }


def _snapshot(session: Session) -> tuple[str, UUID]:
    """Return the current snapshot, and a lower bound of the ids of uncommitted events."""
    row = cursor(session).execute(_NOW).fetchone()
    assert row is not None  # noqa: S101  # the query has always one
    snapshot, now, oldest = row
    began: datetime = min(now, oldest or now)
    return snapshot, ids.earliest_at(began - _BEFORE_WRITING)


def _in_present_epoch(session: Session, after: Position, snapshot: str) -> Position:
    now = epochs.present(session)
    if after.epoch in ("", now.name):
        return replace(after, epoch=now.name)
    first = epochs.first_apart(session, ids.parse("epo", after.epoch))
    begin = beginning() if first == _FIRST else Position(first, snapshot, first)
    raise HistoryRolledBack(
        f"This position is of another history than the epoch {now.name}, that of now: go on from "
        "next_after, from where on they may differ.",
        {"epoch": now.name, "next_after": replace(begin, epoch=now.name).text()},
    )
