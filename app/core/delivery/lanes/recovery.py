"""Waiting rows come forward: once their receiver takes deliveries again, or on request.

Recovery begins when a probe succeeds or the URL changes. The lane then starts as slowly as a new
one; whenever it has nothing else to send, as many waiting rows become due as it may send in half a
second. They do not use up the retry schedule.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_LIVE
from app.database import Tx, cursor

# Most unscheduled attempts of a row, for receivers that flap or always refuse it.
MOST_UNSCHEDULED = 10

# Rows that no worker holds, the earliest first. More unscheduled attempts than attempts would be a
# position before the schedule's first.
_MOVE = """
WITH picked AS MATERIALIZED (
    SELECT found.* FROM open_levels() AS level CROSS JOIN LATERAL (
        SELECT d.id, d.next_attempt_at FROM open_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.priority = level.priority AND d.fresh = level.fresh AND d.lease_until IS NULL
           AND {which}
         ORDER BY d.next_attempt_at LIMIT %(most)s) AS found
     WHERE level.priority = ANY (%(priorities)s::smallint[])
     ORDER BY found.next_attempt_at, found.id LIMIT %(most)s
), moved AS (
    UPDATE open_deliveries AS d
       SET next_attempt_at = {to}, unscheduled = least(d.unscheduled + {counts}, d.attempts)
      FROM picked WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = picked.id
)
SELECT count(*), max(next_attempt_at) FROM picked
"""


def move(
    tx: Tx,
    lane: tuple[UUID, UUID],
    which: str,
    values: Mapping[str, Any],
    most: int,
    *,
    priorities: Sequence[int] = (PRIORITY_LIVE, PRIORITY_BULK),
    to: str = "clock_timestamp()",
    counts: str = "1",
) -> tuple[int, datetime | None]:
    """Move the next attempts of up to `most` rows of a locked lane `to` a moment, earliest first.

    Returns how many, and the attempt that was the latest of them.
    `which`, `to` and `counts` are SQL of a row `d`, with `values` as parameters. `counts` is what
    this adds to the attempts that the schedule does not count.
    """
    query = _MOVE.format(which=which, to=to, counts=counts).encode()
    wanted = {"tenant": lane[0], "webhook": lane[1], "most": most, "priorities": [*priorities]}
    ((moved, last),) = cursor(tx).execute(query, {**values, **wanted}).fetchall()
    return moved, last


# `(SELECT …)`: the search begins there, beyond what is dead but kept for an old snapshot, and where
# the last one ended: what waits again before that was tried since.
_WAITS = f"""
d.next_attempt_at >= (SELECT greatest(clock_timestamp(), %(through)s)) AND d.status = 'retrying'
AND d.unscheduled < {MOST_UNSCHEDULED} AND coalesce(d.attempted_at < %(since)s, true)
AND (d.asked_until IS NULL OR d.asked_until <= clock_timestamp()
     OR coalesce(d.attempted_at < %(receiver_since)s, false))
"""


def bring_forward(
    tx: Tx,
    lane: tuple[UUID, UUID],
    most: int,
    since: datetime,
    through: datetime | None,
    receiver_since: datetime | None,
) -> tuple[int, datetime | None]:
    """Make up to `most` rows of a locked lane due, beyond `through`; return as `move` does.

    They were not tried `since` its recovery began, and no longer wait as this receiver asked; they
    are fewer when none are left.
    """
    values = {"since": since, "through": through, "receiver_since": receiver_since}
    return move(tx, lane, _WAITS, values, most)
