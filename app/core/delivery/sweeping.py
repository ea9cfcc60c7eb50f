"""The sweeper: finds what is due and was not rung, so that losing Redis is harmless.

Each pick stamps `ring_at`, so a backlog is not rung again each second, and the lane that has waited
longest, for its first ring or another, goes first. Lanes are stamped and rung in order: of lanes
that got no bulkhead permit, the one that waits longest tries first.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy.orm import Session

from app.core.delivery.lanes.lanes import LaneKey
from app.database import cursor

AT_ONCE = 1000
# A claim numbers its rows in the same write. Numbering before the claim costs each row one more
# version, so the sweep numbers only a backlog that the workers do not reach.
UNNUMBERED_FOR = timedelta(seconds=30)

# A row that was never claimed has not made its lane due. Each is looked at once, in the order in
# which it is due: what lies dead before `sweeps.through` costs nothing. A lane that is locked is
# looked at again. `settled` is of an earlier statement, as `settled_before` asks for; an idle
# service writes it rarely. What another sweep has written meanwhile (`seen` has not) is of later
# rows than this one reads. `ORDER BY … OFFSET 0` leaves the planner one index: after a VACUUM or
# ANALYZE beside an old snapshot it takes the table for empty, and would read all of any other.
_WAKE = """
WITH seen AS MATERIALIZED (
    SELECT * FROM sweeps
), arrived AS MATERIALIZED (
    SELECT tenant_id, webhook_id, min(next_attempt_at) AS oldest
      FROM (SELECT * FROM open_deliveries
             WHERE next_attempt_at >= (SELECT through FROM seen)
               AND next_attempt_at <= (SELECT clock_timestamp()) AND fresh AND sequence IS NULL
             ORDER BY next_attempt_at OFFSET 0) AS fresh
     GROUP BY tenant_id, webhook_id
), asleep AS MATERIALIZED (
    SELECT w.tenant_id, w.webhook_id, w.version, a.oldest
      FROM arrived AS a
      JOIN present_lanes AS w ON w.tenant_id = a.tenant_id AND w.webhook_id = a.webhook_id
     WHERE (w.due_at IS NULL OR w.due_at > greatest(clock_timestamp(), w.paused_until))
       AND w.held_since IS NULL
), woken AS (
    UPDATE lanes AS l SET due_at = greatest(clock_timestamp(), l.paused_until)
      FROM (SELECT free.place FROM (SELECT * FROM asleep ORDER BY tenant_id, webhook_id) AS a
             CROSS JOIN LATERAL (
               SELECT w.ctid AS place FROM lanes AS w
                WHERE w.tenant_id = a.tenant_id AND w.webhook_id = a.webhook_id
                  AND w.version = a.version
                  FOR NO KEY UPDATE SKIP LOCKED) AS free) AS locked
     WHERE l.ctid = locked.place
    RETURNING l.tenant_id, l.webhook_id
), unnumbered AS MATERIALIZED (
    SELECT DISTINCT tenant_id, webhook_id
      FROM (SELECT * FROM open_deliveries
             WHERE next_attempt_at >= (SELECT numbered_through FROM seen)
               AND next_attempt_at < (SELECT settled FROM seen) - %(patience)s
               AND fresh AND sequence IS NULL
             ORDER BY next_attempt_at OFFSET 0) AS fresh
), looked AS (
    UPDATE sweeps AS s
       SET through = greatest(s.through, least(seen.settled, (
               SELECT min(oldest) FROM asleep
                WHERE (tenant_id, webhook_id) NOT IN (
                      SELECT tenant_id, webhook_id FROM woken)))),
           numbered_through = CASE WHEN EXISTS (SELECT FROM unnumbered) THEN s.numbered_through
                                   ELSE greatest(s.numbered_through,
                                                 seen.settled - %(patience)s) END,
           lanes_through = greatest(s.lanes_through, least(seen.settled, (
               SELECT min(look_at) FROM lanes
                WHERE look_at >= (SELECT lanes_through FROM seen)))),
           settled = settled_before()
      FROM seen
     WHERE EXISTS (SELECT FROM arrived) OR seen.settled < now() - interval '5 s'
)
SELECT tenant_id, webhook_id, (SELECT settled FROM seen) - %(patience)s FROM unnumbered
"""

# One statement for all that is rung: an idle service sends it each second. Ringing a lane moves its
# `look_at`; those of suspended tenants keep theirs, so it may lie far behind.
_DUE = """
WITH due AS MATERIALIZED (
    SELECT ctid AS at, tenant_id, webhook_id FROM lanes
     WHERE look_at >= (SELECT lanes_through FROM sweeps) AND look_at <= (SELECT clock_timestamp())
       AND (ring_at IS NULL OR ring_at < clock_timestamp() - interval '2 s')
       AND tenant_id NOT IN (SELECT id FROM tenants WHERE suspended_at IS NOT NULL)
     ORDER BY coalesce(ring_at, due_at) LIMIT %(most)s
       FOR NO KEY UPDATE SKIP LOCKED
), placed AS (
    SELECT due.at, row_number() OVER () AS place FROM due
), rung AS (
    UPDATE lanes AS l SET ring_at = now() + placed.place * interval '1 us'
      FROM placed
     WHERE l.ctid = placed.at
    RETURNING l.tenant_id, l.webhook_id, placed.place
), job AS (
    UPDATE jobs AS j SET ring_at = clock_timestamp()
     WHERE (j.tenant_id, j.id) IN (
        SELECT tenant_id, id FROM jobs
         WHERE finished_at IS NULL AND run_at <= clock_timestamp()
           AND (locked_until IS NULL OR locked_until < clock_timestamp())
           AND (ring_at IS NULL OR ring_at < clock_timestamp() - interval '2 s')
         ORDER BY run_at LIMIT %(most)s
           FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING j.tenant_id, j.id
)
SELECT actor, tenant_id, id
  FROM (SELECT 'deliver' AS actor, place, tenant_id, webhook_id AS id FROM rung
        UNION ALL SELECT 'run_job', NULL, tenant_id, id FROM job{others}) AS found
 ORDER BY place
"""


def wake(session: Session) -> tuple[list[LaneKey], datetime | None]:
    """Make every lane due that has new rows, in a session that sees every tenant.

    Returns the lanes whose rows have waited for a number for 30 seconds, and until when.
    """
    found = cursor(session).execute(_WAKE, {"patience": UNNUMBERED_FOR}).fetchall()
    return [(row[0], row[1]) for row in found], found[0][2] if found else None


def numbered(session: Session, until: datetime | None) -> None:
    """Note that all that was due `until` then has its number."""
    cursor(session).execute(
        "UPDATE sweeps SET numbered_through = %(until)s WHERE numbered_through < %(until)s",
        {"until": until},
    )


def due(
    session: Session, others: Mapping[str, str] = MappingProxyType({})
) -> dict[str, list[tuple[Any, ...]]]:
    """Pick what to ring, in a session that sees every tenant; return each actor's arguments.

    Lanes are in the order in which they have waited for a ring. `others` are queries, by their
    actors, for the tenants to ring these for; for one that takes none, for a null.
    """
    parts = (
        f" UNION ALL SELECT '{actor}', NULL, tenant_id, NULL FROM ({query}) AS one (tenant_id)"
        for actor, query in others.items()
    )
    found: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    query = _DUE.format(others="".join(parts)).encode()
    for actor, *named in cursor(session).execute(query, {"most": AT_ONCE}):
        found[actor].append(tuple(each for each in named if each is not None))
    return found
