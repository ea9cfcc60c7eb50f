"""Preview of a bulk replay: counts of events sent and left out, with the reason, and duration."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery.history import failure_groups
from app.core.delivery.lanes import lanes
from app.core.replay import replay_selection
from app.core.replay.replay_selection import BELONGS, STATE, Selection, Wanted
from app.database import cursor
from app.errors import NotFound


@dataclass(frozen=True)
class _Part:
    """Sources of one webhook: `state` is selected, arrived or waiting."""

    webhook_id: UUID
    sends: bool
    state: str
    count: int
    oldest: datetime | None = None
    newest: datetime | None = None
    seconds_each: float | None = None


_PARTS = f"""
WITH candidates AS MATERIALIZED (
    SELECT * FROM ({{sources}}) AS d {{order}}
), rows AS MATERIALIZED (
    SELECT * FROM candidates {{newest}}
), {failure_groups.AGAIN}, marked AS (
    SELECT webhook_id, created_at, {BELONGS} AS counts, {STATE} AS state FROM rows
), parts AS (
    SELECT webhook_id, state, count(*) AS count, min(created_at) AS oldest,
           max(created_at) AS newest
      FROM marked WHERE counts GROUP BY 1, 2
)
SELECT (SELECT count(*) FROM candidates) AS read, part.webhook_id,
       w.status = 'enabled' AND w.deleted_at IS NULL AS sends, part.state, part.count, part.oldest,
       part.newest, l.latency_ms / 1000 / least(l.concurrency, w.max_in_flight) AS seconds_each
  FROM (VALUES (true)) AS always
  LEFT JOIN parts AS part ON true
  LEFT JOIN webhooks AS w ON w.tenant_id = %(tenant)s AND w.id = webhook_of(part.webhook_id)
  LEFT JOIN lanes AS l ON l.tenant_id = %(tenant)s AND l.webhook_id = part.webhook_id
"""

# Deliveries of a group or of given ids that are not replayed, because they have not failed.
_OTHERS = """
SELECT d.webhook_id, true AS sends,
       CASE WHEN d.finished_at IS NULL THEN 'waiting' ELSE 'arrived' END AS state, count(*) AS count
  FROM (SELECT d.webhook_id, d.finished_at FROM deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND webhook_of(d.webhook_id) = coalesce(%(webhook)s, webhook_of(d.webhook_id))
           AND {conditions}
         LIMIT {most}) AS d
 GROUP BY 1, 2, 3
"""


@dataclass(frozen=True)
class Preview:
    """A selection's counts, by webhook; `complete` if all of it was counted."""

    selection: Selection
    parts: Sequence[_Part]
    complete: bool

    @property
    def webhooks(self) -> list[UUID]:
        """The lanes that replays are sent to, in lock order."""
        return sorted({part.webhook_id for part in self._selected})

    @property
    def count(self) -> int:
        """The number of events to send again."""
        return sum(part.count for part in self._selected)

    @property
    def _selected(self) -> list[_Part]:
        return [part for part in self.parts if part.state == "selected" and part.sends]

    def represent(self, rate: int | None) -> dict[str, Any]:
        """Return the preview's JSON representation, for a dry run."""
        oldest = min((part.oldest for part in self._selected if part.oldest), default=None)
        newest = max((part.newest for part in self._selected if part.newest), default=None)
        return {
            "count": self.count,
            "oldest": oldest and rfc3339(oldest),
            "newest": newest and rfc3339(newest),
            "left_out": {
                "arrived_since": self._left_out("arrived"),
                "already_waiting": self._left_out("waiting"),
                "not_sending": self._left_out("selected"),
            },
            "seconds": self._seconds(rate),
            "as_of": rfc3339(self.selection.as_of),
        }

    def _left_out(self, state: str) -> int:
        left_out = [part for part in self.parts if part not in self._selected]
        return sum(part.count for part in left_out if part.state == state)

    def _seconds(self, rate: int | None) -> int | None:
        """Estimate the duration in seconds, from the rate or the slowest receiver's latency."""
        if rate is not None:
            return math.ceil(self.count / rate)
        each = [(part.count, part.seconds_each) for part in self._selected]
        if any(seconds is None for _, seconds in each):
            return None
        return max((math.ceil(count * (seconds or 0)) for count, seconds in each), default=0)


def of(session: Session, tenant_id: UUID, selection: Selection, most: int | None = None) -> Preview:
    """Return the counts of a selection, or of its `most` newest deliveries and events."""
    named = replay_selection.values(session, tenant_id, selection)
    read, parts = _parts(session, selection, named, most)
    for conditions in _other_conditions(selection.wanted):
        query = _OTHERS.format(conditions=conditions, most="ALL" if most is None else most + 1)
        others = cursor(session, class_row(_Part)).execute(query, named).fetchall()
        read = max(read, sum(part.count for part in others))
        parts += others
    return Preview(selection, parts, complete=most is None or read <= most)


def _parts(
    session: Session, selection: Selection, named: dict[str, Any], most: int | None
) -> tuple[int, list[_Part]]:
    """Return how many candidates were read, and the counts by webhook and state."""
    sources = [
        f"({replay_selection.sources(one, table, most)})"
        for one in ([selection] if most is None else replay_selection.by_status(selection))
        for table in one.wanted.tables()
    ]
    if selection.webhook_id is not None:
        keys = lanes.of_webhook(session, named["tenant"], selection.webhook_id)
        sources = lanes.on_each(sources, "webhook", keys, named)
    query = _PARTS.format(
        sources=" UNION ALL ".join(sources),
        order="" if most is None else f"ORDER BY id DESC LIMIT {most} + 1",
        newest="" if most is None else f"ORDER BY id DESC LIMIT {most}",
    )
    # A prepared statement's generic plan reads far more.
    rows = cursor(session).execute(query, named, prepare=False).fetchall()
    return rows[0][0], [_Part(*row[1:]) for row in rows if row[1] is not None]


def _other_conditions(wanted: Wanted) -> Iterator[str]:
    if wanted.ids is not None:
        yield "d.id = ANY (%(ids)s) AND d.status NOT IN ('failed', 'cancelled')"
    if wanted.group is not None:
        yield (
            "d.status = 'retrying' AND d.webhook_id = %(group_of)s"
            " AND d.failure = %(failure)s AND d.kind <> 'test'"
        )


_NAMED = """
SELECT id, webhook_id, event_id FROM deliveries
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND id = ANY (%(ids)s) AND kind <> 'test'
   AND webhook_of(webhook_id) = coalesce(%(webhook)s, webhook_of(webhook_id))
 ORDER BY id
"""


def one_each(
    session: Session, tenant_id: UUID, webhook_id: UUID | None, named: Sequence[UUID]
) -> tuple[UUID, ...]:
    """Return the ids, only the last one for each event and webhook.

    Raises `NotFound` for an id that names no delivery.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "ids": list(named)}
    found = cursor(session).execute(_NAMED, wanted).fetchall()
    known = {row[0] for row in found}
    for each in named:
        if each not in known:
            raise NotFound(f"There is no delivery {ids.text('dlv', each)} to replay here.")
    last = {row[1:]: row[0] for row in found}
    return tuple(sorted(last.values()))
