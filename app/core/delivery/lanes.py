"""A lane is one webhook's way out: its numbers, its slots, its pause and when it is due again.

Whoever changes any of these holds the lane's row lock first (`look`), so a sequence has no gap, a
slot no two holders and a pause one probe. `lanes.due_at` is when the lane next needs a worker; it
is computed anew, under the lock, whenever a worker leaves, and lowered by whoever makes a row due.
"""

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_LIVE, PRIORITY_URGENT
from app.database import cursor

NUMBER_AT_ONCE = 500
SLOT_LEASE = timedelta(seconds=30)
PROVEN_FOR = timedelta(minutes=10)


class Standing(enum.Enum):
    """What is known of a lane's receiver.

    `SLOW` is one that has kept a POST waiting for over a second and answered none well and quickly
    since. `PROVEN` is any other that answered well in the last ten minutes, `UNKNOWN` the rest.
    """

    PROVEN = enum.auto()
    UNKNOWN = enum.auto()
    SLOW = enum.auto()


@dataclass(frozen=True)
class Lane:
    """A lane and its webhook as they were when the lane was locked, at the database's `now`."""

    tenant_id: UUID
    webhook_id: UUID
    now: datetime
    url: str
    sealed_secrets: bytes
    max_in_flight: int
    sends: bool
    paused_until: datetime | None
    pause_level: int
    consecutive_failures: int
    failing_since: datetime | None
    last_success_at: datetime | None
    slow_at: datetime | None

    @property
    def standing(self) -> Standing:
        """What is known of the receiver."""
        if self.slow_at is not None:
            return Standing.SLOW
        recent = self.last_success_at is not None and self.last_success_at > self.now - PROVEN_FOR
        return Standing.PROVEN if recent else Standing.UNKNOWN

    @property
    def proven(self) -> bool:
        """Whether the receiver answered well in the last ten minutes and is not hanging now."""
        return self.standing is Standing.PROVEN

    @property
    def paused(self) -> bool:
        """Whether the lane waits before its next probe."""
        return self.paused_until is not None and self.paused_until > self.now


_LOOK = """
SELECT l.tenant_id, l.webhook_id, clock_timestamp() AS now, w.url, w.sealed_secrets,
       w.max_in_flight, w.status = 'enabled' AND w.deleted_at IS NULL AS sends,
       l.paused_until, l.pause_level, l.consecutive_failures, l.failing_since, l.last_success_at,
       l.slow_at
  FROM lanes l JOIN webhooks w ON w.tenant_id = l.tenant_id AND w.id = l.webhook_id
 WHERE l.tenant_id = %s AND l.webhook_id = %s
"""


def look(
    session: Session, tenant_id: UUID, webhook_id: UUID, *, locked: bool = True
) -> Lane | None:
    """Return the lane as it is now, locked until the transaction ends unless told otherwise.

    Two statements: in one, the webhook would be as it was before the wait for the lock.
    """
    if locked:
        lock(session, tenant_id, webhook_id)
    return cursor(session, class_row(Lane)).execute(_LOOK, (tenant_id, webhook_id)).fetchone()


def lock(session: Session, tenant_id: UUID, webhook_id: UUID) -> None:
    """Hold the lane's row lock until the transaction ends."""
    cursor(session).execute(
        "SELECT 1 FROM lanes WHERE tenant_id = %s AND webhook_id = %s FOR NO KEY UPDATE",
        (tenant_id, webhook_id),
    )


# `(SELECT …)` hides a value from the planner: of a tenant or webhook that is younger than its last
# statistics it would expect one row, and take any index for good enough (docs/performance.md).
_NUMBER = """
WITH fresh AS MATERIALIZED (
    SELECT first.id, row_number() OVER (ORDER BY first.id) AS place
      FROM first_unnumbered(%(tenant)s, %(webhook)s, %(limit)s) AS first (id)
), numbered AS (
    UPDATE deliveries AS d SET sequence = l.next_sequence - 1 + fresh.place
      FROM fresh, lanes AS l
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = fresh.id
       AND l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
)
UPDATE lanes SET next_sequence = next_sequence + found.count,
                 due_at = least(due_at, greatest(clock_timestamp(), paused_until))
  FROM (SELECT count(*) FROM fresh) AS found
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND found.count > 0
RETURNING found.count
"""


def number(session: Session, tenant_id: UUID, webhook_id: UUID) -> int:
    """Give the next sequence numbers to up to 500 rows that have none; return how many.

    Locks the lane before it looks for rows: with a snapshot from before the lock, two of these at
    once would leave gaps. The lane is due from then on, since the sweep finds a row without a
    number by itself and one with a number only by its lane: whoever has numbered it may die.
    """
    lock(session, tenant_id, webhook_id)
    return number_locked(session, tenant_id, webhook_id)


def number_if_free(session: Session, tenant_id: UUID, webhook_id: UUID) -> int:
    """Do what `number` does, unless somebody else holds the lane's lock: then return 0 at once."""
    free = cursor(session).execute(
        "SELECT 1 FROM lanes WHERE tenant_id = %s AND webhook_id = %s"
        " FOR NO KEY UPDATE SKIP LOCKED",
        (tenant_id, webhook_id),
    )
    return number_locked(session, tenant_id, webhook_id) if free.fetchone() else 0


def number_locked(session: Session, tenant_id: UUID, webhook_id: UUID) -> int:
    """Do what `number` does, in a transaction that holds the lane's lock already."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "limit": NUMBER_AT_ONCE}
    row = cursor(session).execute(_NUMBER, wanted).fetchone()
    return int(row[0]) if row else 0


_TAKE_SLOT = """
UPDATE lane_slots SET holder = %(holder)s, lease_until = clock_timestamp() + %(lease)s
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND slot = (
    SELECT slot FROM lane_slots
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND slot < %(slots)s
       AND (holder IS NULL OR lease_until < clock_timestamp())
     ORDER BY slot LIMIT 1)
RETURNING slot
"""


def take_slot(session: Session, lane: Lane, holder: UUID) -> int | None:
    """Take a free slot of a locked lane for `holder` and return its number; None without one.

    An unproven lane has one slot, whatever `max_in_flight` says.
    """
    cur = cursor(session).execute(
        _TAKE_SLOT,
        {
            "holder": holder,
            "lease": SLOT_LEASE,
            "tenant": lane.tenant_id,
            "webhook": lane.webhook_id,
            "slots": lane.max_in_flight if lane.proven else 1,
        },
    )
    taken = cur.fetchone()
    return None if taken is None else int(taken[0])


def keep_slot(session: Session, lane: Lane, holder: UUID) -> bool:
    """Renew the lease of the holder's slot; False when it was lost meanwhile."""
    kept = cursor(session).execute(
        "UPDATE lane_slots SET lease_until = clock_timestamp() + %s"
        " WHERE tenant_id = %s AND webhook_id = %s AND holder = %s",
        (SLOT_LEASE, lane.tenant_id, lane.webhook_id, holder),
    )
    return kept.rowcount == 1


def free_slot(session: Session, tenant_id: UUID, webhook_id: UUID, holder: UUID) -> None:
    """Give the holder's slot back."""
    cursor(session).execute(
        "UPDATE lane_slots SET holder = NULL, lease_until = NULL"
        " WHERE tenant_id = %s AND webhook_id = %s AND holder = %s",
        (tenant_id, webhook_id, holder),
    )


def set_slots(session: Session, tenant_id: UUID, webhook_id: UUID, slots: int) -> None:
    """Make the lane have exactly `slots` slots; one in use ends when its holder leaves."""
    cur = cursor(session)
    cur.execute(
        "INSERT INTO lane_slots (tenant_id, webhook_id, slot)"
        " SELECT %s, %s, generate_series(0, %s - 1) ON CONFLICT DO NOTHING",
        (tenant_id, webhook_id, slots),
    )
    cur.execute(
        "DELETE FROM lane_slots WHERE tenant_id = %s AND webhook_id = %s AND slot >= %s",
        (tenant_id, webhook_id, slots),
    )


# One probe for each priority: three min() of a partitioned table take longer to plan than to run.
_RESCHEDULE = f"""
WITH open AS (
    SELECT min(earliest.at) FILTER (WHERE level.priority = {PRIORITY_URGENT}) AS urgent,
           min(earliest.at) FILTER (WHERE level.priority > {PRIORITY_URGENT}) AS patient
      FROM (VALUES ({PRIORITY_URGENT}), ({PRIORITY_LIVE}), ({PRIORITY_BULK})) AS level (priority)
     CROSS JOIN LATERAL (
        SELECT next_attempt_at AS at FROM deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.priority = level.priority AND d.finished_at IS NULL
         ORDER BY d.next_attempt_at LIMIT 1) AS earliest
)
UPDATE lanes SET ring_at = CASE WHEN %(behind)s THEN clock_timestamp() END, due_at = least(
           open.urgent,
           CASE WHEN open.patient IS NOT NULL THEN greatest(open.patient, paused_until) END)
  FROM open
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
RETURNING coalesce(due_at <= clock_timestamp(), false)
"""


def reschedule(
    session: Session, tenant_id: UUID, webhook_id: UUID, *, behind: bool = False
) -> bool:
    """Compute when a locked lane is due next; return whether it is due already.

    The sweep may ring it from then on, whenever it did last; `behind` puts it behind the due lanes
    that were rung before.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "behind": behind}
    row = cursor(session).execute(_RESCHEDULE, wanted).fetchone()
    return row is not None and bool(row[0])


def due_now(session: Session, tenant_id: UUID, webhook_id: UUID) -> None:
    """Say that the lane has something to send at once."""
    cursor(session).execute(
        "UPDATE lanes SET due_at = least(due_at, clock_timestamp())"
        " WHERE tenant_id = %s AND webhook_id = %s",
        (tenant_id, webhook_id),
    )
