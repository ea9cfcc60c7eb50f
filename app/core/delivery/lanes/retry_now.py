"""Retry now: brings forward what waits, on an operator's request, and tells what became of it.

Such attempts do not count in the retry schedule, like those of `recovery`. The lane's pause ends:
the first of them is its probe. A rate first parks what is due, or all of that would go at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_LIVE, PRIORITY_URGENT
from app.core.delivery.history.delivery_history import earliest_id, latest_id
from app.core.delivery.lanes import lanes
from app.database import Tx, cursor

# Rows in one transaction, which holds the lane's lock.
MOST_AT_ONCE = 5_000
_NUMBERED_AT_MOST = 20_000


@dataclass(frozen=True)
class Open:
    """A lane's deliveries that have not ended as of one moment: so many, `in_flight` of them.

    They are its events with a number below `sequence`, and replays and tests made by `as_of`.
    `oldest` is a lower bound of their ids.
    """

    as_of: datetime
    sequence: int
    count: int
    in_flight: int
    oldest: UUID | None


_OPEN = """
SELECT clock_timestamp() AS as_of, l.next_sequence AS sequence, open.*
  FROM lanes AS l
 CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(id::text)::uuid AS oldest,
           count(*) FILTER (WHERE lease_until > clock_timestamp()) AS in_flight
      FROM open_deliveries
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
       AND (sequence IS NOT NULL OR kind <> 'event')) AS open
 WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
"""


def open_of(tx: Tx, tenant_id: UUID, webhook_id: UUID) -> Open:
    """Return what a locked lane has open now.

    Numbers its events first, up to 20,000: a number says which were there.
    """
    for _ in range(_NUMBERED_AT_MOST // lanes.NUMBER_AT_ONCE):
        if not lanes.number_locked(tx, tenant_id, webhook_id):
            break
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    found = cursor(tx, class_row(Open)).execute(_OPEN, wanted).fetchone()
    assert found is not None  # noqa: S101  # every webhook has a lane
    return found


# The rows of an `Open`; those of it that had no attempt since.
_OF = """
CASE WHEN d.kind = 'event' THEN d.sequence < %(sequence)s ELSE d.created_at <= %(as_of)s END
"""
_UNTRIED = "coalesce(d.attempted_at < %(as_of)s, true)"
_PICK = f"""
SELECT picked.id
  FROM open_levels() AS level
 CROSS JOIN LATERAL (
    SELECT d.id, d.next_attempt_at FROM open_deliveries AS d
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
       AND d.webhook_id = (SELECT %(webhook)s::uuid)
       AND d.priority = level.priority AND d.fresh = level.fresh AND d.lease_until IS NULL
       AND {{when}} AND {_UNTRIED} AND {_OF}
     ORDER BY d.next_attempt_at LIMIT %(most)s) AS picked
 WHERE level.priority = ANY (%(priorities)s::smallint[])
 ORDER BY picked.next_attempt_at, picked.id LIMIT %(most)s
"""
_PARK = f"""
UPDATE open_deliveries AS d SET next_attempt_at = %(until)s
  FROM ({_PICK.format(when="d.next_attempt_at <= %(as_of)s")}) AS due
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = due.id
"""
# What was parked was due by its schedule. More unscheduled attempts than attempts would be a
# position before the schedule's first.
_BRING = f"""
UPDATE open_deliveries AS d
   SET unscheduled = CASE WHEN d.next_attempt_at = %(until)s THEN d.unscheduled
                          ELSE least(d.unscheduled + 1, d.attempts) END,
       next_attempt_at = clock_timestamp()
  FROM ({_PICK.format(when="d.next_attempt_at > clock_timestamp()")}) AS waiting
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = waiting.id
"""


def park(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any]) -> bool:
    """Let up to 5,000 due rows of a locked lane wait `until` later; say whether more may be due.

    What is urgent goes at once all the same.
    """
    levels = [PRIORITY_LIVE, PRIORITY_BULK]
    wanted = {**found, "tenant": tenant_id, "webhook": webhook_id, "priorities": levels}
    moved = cursor(tx).execute(_PARK, {**wanted, "most": MOST_AT_ONCE}).rowcount
    lanes.reschedule(tx, tenant_id, webhook_id)
    return moved == MOST_AT_ONCE


def bring(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any], most: int) -> int:
    """Make up to `most` waiting rows of a locked lane due, the earliest first; return how many."""
    levels = [PRIORITY_URGENT, PRIORITY_LIVE, PRIORITY_BULK]
    wanted = {**found, "tenant": tenant_id, "webhook": webhook_id, "priorities": levels}
    moved = cursor(tx).execute(_BRING, {**wanted, "most": most}).rowcount
    lanes.reschedule(tx, tenant_id, webhook_id)
    return moved


_END_PAUSE = """
UPDATE lanes SET paused_until = least(paused_until, clock_timestamp())
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def end_pause(tx: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """End a locked lane's pause: its next attempt is a probe."""
    cursor(tx).execute(_END_PAUSE, {"tenant": tenant_id, "webhook": webhook_id})
    lanes.reschedule(tx, tenant_id, webhook_id)


_TALLY = f"""
SELECT open.*, ended.*
  FROM (SELECT count(*) FILTER (WHERE {_UNTRIED}) AS waiting,
               count(*) FILTER (WHERE NOT {_UNTRIED}) AS retrying
          FROM open_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid) AND {_OF}) AS open,
       (SELECT count(*) FILTER (WHERE d.status = 'failed') AS failed,
               count(*) FILTER (WHERE d.status = 'cancelled') AS cancelled
          FROM ended_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.status IN ('failed', 'cancelled')
           AND d.id >= %(oldest)s AND d.id < %(newest)s
           AND d.finished_at > %(as_of)s AND {_OF}) AS ended
"""


def tally(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any]) -> dict[str, int]:
    """Return what became of the rows of an `Open`, whose fields `found` has: those not succeeded.

    `waiting` had no attempt since, `retrying` failed at one and wait for the next. Reads open rows
    and failures only: what else there was has succeeded.
    """
    wanted = {
        **found,
        "tenant": tenant_id,
        "webhook": webhook_id,
        "oldest": found["oldest"] or earliest_id(found["as_of"]),
        "newest": latest_id(found["as_of"] + timedelta(seconds=1)),
    }
    counts = cursor(tx, dict_row).execute(_TALLY, wanted).fetchone()
    assert counts is not None  # noqa: S101  # aggregates are one row
    return counts


# A delivery that is due already counts no further unscheduled attempt. A lease that has ended is a
# dead worker's.
_ONE = f"""
UPDATE open_deliveries
   SET unscheduled = least(unscheduled + (next_attempt_at > clock_timestamp())::int, attempts),
       next_attempt_at = clock_timestamp(), priority = {PRIORITY_URGENT}
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND id = %(delivery)s
   AND (lease_until IS NULL OR lease_until <= clock_timestamp())
"""


def bring_one(tx: Tx, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID) -> bool:
    """Make one row of a locked lane due, before all others; say whether it was waiting."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "delivery": delivery_id}
    moved = cursor(tx).execute(_ONE, wanted).rowcount == 1
    if moved:
        lanes.due_now(tx, tenant_id, webhook_id)
    return moved
