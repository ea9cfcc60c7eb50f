"""Sources of a bulk replay, read in the order of their ids, and the replays created from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.delivery.events import PRIORITY_BULK, PRIORITY_URGENT
from app.core.replay import replay_selection
from app.core.replay.replay_plan import UNSENT, Stretch, oldest_of
from app.core.replay.replay_selection import Selection
from app.database import cursor
from app.models import Job


@dataclass(frozen=True)
class Source:
    """An event that did not arrive; `settled` if a replay has delivered it or is about to.

    `selected` is false if that was already so at the selection's moment.
    """

    webhook_id: UUID
    id: UUID
    event_id: UUID
    sequence: int | None
    replay_of: UUID | None
    created_at: datetime
    selected: bool
    settled: bool


# Deliveries that this job withdrew and has not created again.
_TAKEN_BACK = """
SELECT d.webhook_id, d.id, d.event_id, d.sequence, d.replay_of, d.created_at
  FROM deliveries AS d
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.job_id = (SELECT %(job)s::uuid)
   AND d.webhook_id = (SELECT %(webhook)s::uuid) AND d.id >= %(oldest)s AND d.id > %(after)s
   AND d.status = 'cancelled' AND d.attempts = 0
   AND NOT EXISTS (SELECT FROM deliveries AS again
                    WHERE again.tenant_id = (SELECT %(tenant)s::uuid)
                      AND again.webhook_id = d.webhook_id AND again.kind = 'replay'
                      AND again.event_id = d.event_id AND again.job_id = d.job_id
                      AND again.id > d.id)
"""
_SELECTED = f"NOT {replay_selection.SETTLED_THEN}"
_PICK = """
SELECT source.*, {selected} AS selected, {settled} AS settled
  FROM ({source} ORDER BY id LIMIT %(limit)s) AS source ORDER BY id
"""


def pick(
    session: Session, job: Job, selection: Selection, stretch: Stretch, limit: int
) -> list[Source]:
    """Return the next sources of a stretch, in the order of their ids."""
    one = Selection(stretch.webhook, selection.wanted, selection.as_of)
    again = stretch.table == UNSENT
    query = _PICK.format(
        source=_TAKEN_BACK if again else replay_selection.source(one, stretch.table),
        selected="true" if again else _SELECTED,
        settled=replay_selection.SETTLED_NOW,
    )
    named = replay_selection.values(job.tenant_id, one)
    named |= {"job": job.id, "oldest": oldest_of(job), "after": stretch.after, "limit": limit}
    return cursor(session, class_row(Source)).execute(query, named).fetchall()


# The canary of a held webhook waits with the rest.
_REPLAY = f"""
WITH made AS (
    INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                            sequence, replay_of, job_id, next_attempt_at)
    SELECT %(tenant)s, new.id, %(webhook)s, e.id, e.type, 'replay', lane.priority, new.sequence,
           new.replay_of, %(job)s, clock_timestamp()
      FROM unnest(%(ids)s::uuid[], %(events)s::uuid[], %(sequences)s::bigint[],
                  %(replays_of)s::uuid[]) AS new (id, event_id, sequence, replay_of)
      JOIN events AS e ON e.tenant_id = %(tenant)s AND e.id = new.event_id
     CROSS JOIN (SELECT CASE WHEN held_since IS NULL THEN %(priority)s
                             ELSE {PRIORITY_BULK} END::smallint AS priority
                   FROM lanes WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s) AS lane
     WHERE e.id = ANY (%(events)s)
    RETURNING 1
), counted AS (
    SELECT count(*) AS n FROM made
)
UPDATE lanes
   SET replays_accepted = replays_accepted + counted.n,
       due_at = least(due_at, CASE WHEN %(urgent)s THEN clock_timestamp()
                                   ELSE greatest(clock_timestamp(), paused_until) END)
  FROM counted WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
RETURNING counted.n
"""


def send(session: Session, job: Job, webhook_id: UUID, due: Sequence[Source], priority: int) -> int:
    """Create a replay of each source whose event is still kept; return how many."""
    made = cursor(session, scalar_row).execute(
        _REPLAY,
        {
            "tenant": job.tenant_id,
            "webhook": webhook_id,
            "job": job.id,
            "priority": priority,
            "urgent": priority == PRIORITY_URGENT,
            "ids": sorted(ids.new() for _ in due),
            "events": [source.event_id for source in due],
            "sequences": [source.sequence for source in due],
            "replays_of": [source.replay_of for source in due],
        },
    )
    wakeups.ring_lanes(session, [(job.tenant_id, webhook_id)])
    return made.fetchone() or 0
