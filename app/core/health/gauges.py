"""Gauges: current numbers of due, paused, disabled or dead objects, over all tenants.

Each figure comes from an index with few rows beyond those counted.
"""

from dataclasses import dataclass
from datetime import timedelta

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.database import cursor

# The sweep rings each second, and turns at a lane with a backlog follow within seconds.
OVERDUE = timedelta(seconds=60)


@dataclass(frozen=True)
class Gauges:
    """The figures of one moment; ages are seconds, 0 where nothing is due."""

    lanes_due: int
    lanes_overdue: int
    lanes_paused: int
    oldest_due: float
    webhooks: int
    webhooks_disabled: int
    jobs_queued: int
    jobs_running: int
    jobs_retrying: int
    jobs_dead: int
    oldest_job_due: float
    oldest_digest: float
    unanchored: int
    anchoring_alarms: int
    oldest_unanchored: float
    oldest_candidate: float
    chains_broken: int
    chains_unknown: int
    logs_unverified: int


# A stuck scrape must not add load.
_GIVE_UP = "SET LOCAL statement_timeout = '5s'"

# Lanes and digests of suspended tenants wait on purpose and are not counted, as in `sweeping`.
# Unnumbered events do not make their lane due, so without the sweep no due lane would show them.
# One index probe per lane finds its first such row (as in `sweeping`).
_READ = """
WITH RECURSIVE unseen AS (
    (SELECT tenant_id, webhook_id, next_attempt_at FROM deliveries
      WHERE sequence IS NULL AND kind = 'event'
      ORDER BY tenant_id, webhook_id, id LIMIT 1)
    UNION ALL
    SELECT beyond.tenant_id, beyond.webhook_id, beyond.next_attempt_at
      FROM unseen AS u
     CROSS JOIN LATERAL (
        SELECT d.tenant_id, d.webhook_id, d.next_attempt_at FROM deliveries AS d
         WHERE d.sequence IS NULL AND d.kind = 'event'
           AND (d.tenant_id, d.webhook_id) > (u.tenant_id, u.webhook_id)
         ORDER BY d.tenant_id, d.webhook_id, d.id LIMIT 1) AS beyond
), present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), suspended AS MATERIALIZED (
    SELECT id FROM tenants WHERE suspended_at IS NOT NULL
), waiting AS (
    SELECT l.tenant_id, l.webhook_id, l.due_at FROM lanes AS l
     WHERE l.due_at <= (SELECT now FROM present)
    UNION ALL
    SELECT u.tenant_id, u.webhook_id, greatest(u.next_attempt_at, l.paused_until)
      FROM unseen AS u
      JOIN lanes AS l ON l.tenant_id = u.tenant_id AND l.webhook_id = u.webhook_id
), due AS (
    SELECT (SELECT now FROM present) - min(due_at) AS age FROM waiting
     WHERE due_at <= (SELECT now FROM present)
       AND tenant_id NOT IN (SELECT id FROM suspended) GROUP BY tenant_id, webhook_id
), open_job AS (
    SELECT status, (SELECT now FROM present) - greatest(run_at, locked_until) AS age
      FROM jobs WHERE finished_at IS NULL
)
SELECT lane.due AS lanes_due, lane.overdue AS lanes_overdue, lane.oldest AS oldest_due,
       (SELECT count(*) FROM lanes
         WHERE paused_until > (SELECT now FROM present)) AS lanes_paused,
       (SELECT count(*) FROM webhooks WHERE deleted_at IS NULL) AS webhooks,
       (SELECT count(*) FROM webhooks
         WHERE status = 'disabled' AND deleted_at IS NULL) AS webhooks_disabled,
       job.queued AS jobs_queued, job.running AS jobs_running, job.retrying AS jobs_retrying,
       (SELECT count(*) FROM jobs WHERE status = 'dead') AS jobs_dead,
       job.oldest AS oldest_job_due,
       (SELECT greatest(coalesce(extract(epoch FROM (SELECT now FROM present) - min(claimed_at)),
                                 0), 0)::float8
          FROM digests WHERE status IN ('pending', 'sending')
           AND refusal IS DISTINCT FROM 'recipient'
           AND tenant_id NOT IN (SELECT id FROM suspended)) AS oldest_digest,
       trouble.parts AS unanchored, trouble.alarms AS anchoring_alarms,
       trouble.oldest AS oldest_unanchored,
       (SELECT coalesce(extract(epoch FROM (SELECT now FROM present) - min(signed_at)), 0)::float8
          FROM checkpoints WHERE note IS NULL
           AND generation = (SELECT max(generation) FROM log_generations)) AS oldest_candidate,
       broken.chains AS chains_broken, broken.unknown AS chains_unknown,
       broken.logs AS logs_unverified
  FROM (SELECT count(*) AS due, count(*) FILTER (WHERE age > %(overdue)s) AS overdue,
               coalesce(extract(epoch FROM max(age)), 0)::float8 AS oldest FROM due) AS lane
 CROSS JOIN (
       SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
              count(*) FILTER (WHERE status = 'running') AS running,
              count(*) FILTER (WHERE status = 'retrying') AS retrying,
              greatest(coalesce(extract(epoch FROM max(age)), 0), 0)::float8 AS oldest
         FROM open_job) AS job
 CROSS JOIN (
       SELECT count(*) AS parts, count(*) FILTER (WHERE alarm) AS alarms,
              coalesce(extract(epoch FROM (SELECT now FROM present) - min(since)), 0)::float8
                  AS oldest
         FROM anchoring_troubles) AS trouble
 CROSS JOIN (
       SELECT count(DISTINCT tenant_id) FILTER (WHERE subject = '') AS chains,
              count(DISTINCT subject) FILTER (WHERE subject NOT IN ('', 'log')) AS unknown,
              count(DISTINCT subject) FILTER (WHERE subject = 'log') AS logs
         FROM audit_breaks WHERE healed_at IS NULL) AS broken
"""


def limit_time(session: Session) -> None:
    """Have each statement of this transaction end after five seconds."""
    cursor(session).execute(_GIVE_UP)


def read(session: Session) -> Gauges:
    """Return the gauges, in a session that sees every tenant."""
    found = cursor(session, class_row(Gauges)).execute(_READ, {"overdue": OVERDUE}).fetchone()
    if found is None:
        raise LookupError("a query of totals has one row")
    return found
