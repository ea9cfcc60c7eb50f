"""Expiry of findings after FINDINGS_DAYS: a durable job for each tenant, and counts that stay.

Each step deletes a bounded number of the oldest, with their words and the packs that have them, and
counts them by day in the same transaction. What a legal hold covers is passed over. None goes
before the history of its event, whose bytes may be written from it.
"""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import partitions
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.findings import Severity
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Step
from app.core.records import expiry, retention
from app.database import cursor, database_now
from app.models import Job
from app.schemas import fields
from app.schemas.schema import AnswerSchema

KIND = "expire_findings"
# Of one transaction, which takes some tens of milliseconds.
MOST = 2_000

_TENANTS = """
SELECT t.id FROM tenants AS t
 WHERE EXISTS (SELECT FROM findings AS f WHERE f.tenant_id = t.id AND f.id < %s)
 ORDER BY t.id
"""
_STEP = f"""
WITH next AS MATERIALIZED (
    SELECT f.* FROM findings AS f
     WHERE f.tenant_id = %(tenant)s AND f.id > %(after)s AND f.id < %(below)s
     ORDER BY f.id LIMIT %(most)s
), due AS MATERIALIZED (
    SELECT f.id FROM next AS f
      LEFT JOIN records AS r ON r.tenant_id = f.tenant_id AND r.id = f.record_id
     WHERE NOT {retention.held("f", "record_id")} AND (r.id IS NULL OR NOT {retention.held()})
), gone AS (
    DELETE FROM findings WHERE tenant_id = %(tenant)s AND id = ANY (ARRAY(SELECT id FROM due))
    RETURNING record_id, session_id, rule, severity, source, created_at
), words AS (
    DELETE FROM finding_words
     WHERE tenant_id = %(tenant)s AND finding_id = ANY (ARRAY(SELECT id FROM due))
), packs AS (
    DELETE FROM evidence_packs WHERE tenant_id = %(tenant)s
       AND (record_id = ANY (ARRAY(SELECT DISTINCT record_id FROM gone))
            OR session_id = ANY (ARRAY(SELECT DISTINCT session_id FROM gone)))
), counted AS (
    INSERT INTO expired_findings AS kept (tenant_id, day, rule, severity, source, findings)
    SELECT %(tenant)s, (created_at AT TIME ZONE 'UTC')::date, rule, severity, source, count(*)
      FROM gone GROUP BY 2, 3, 4, 5
        ON CONFLICT (tenant_id, day, rule, severity, source)
        DO UPDATE SET findings = kept.findings + excluded.findings
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM next),
       (SELECT id FROM next ORDER BY id DESC LIMIT 1)
"""
_COUNTS = """
SELECT day, sum(findings)::bigint AS findings,
       jsonb_object_agg(severity, of_severity) AS by_severity
  FROM (SELECT day, severity, sum(findings)::bigint AS of_severity, sum(findings) AS findings
          FROM expired_findings
         WHERE tenant_id = %(tenant)s AND (%(rule)s::text IS NULL OR rule = %(rule)s)
           AND (%(before)s::date IS NULL OR day < %(before)s)
         GROUP BY day, severity) AS kept
 GROUP BY day ORDER BY day DESC LIMIT %(limit)s
"""


class BySeveritySchema(AnswerSchema):
    """A count for each severity."""

    info = fields.Count()
    low = fields.Count()
    medium = fields.Count()
    high = fields.Count()
    critical = fields.Count()


class ExpiredFindingsSchema(AnswerSchema):
    """How many findings that were created on a day have expired."""

    day = fields.Text(10, metadata={"description": "In UTC.", "example": "2026-01-31"})
    findings = fields.Count()
    by_severity = fields.Object(BySeveritySchema)


def enqueue_due(session: Session, days: int) -> None:
    """Enqueue a job for each tenant with findings older than so many days; sees all tenants."""
    through = min(
        database_now(session) - timedelta(days=days),
        # Events from the beginning of the history on may be written from their findings.
        partitions.begins_at(session),
    )
    below = ids.earliest_at(through)
    for (tenant_id,) in cursor(session).execute(_TENANTS, (below,)).fetchall():
        job_queue.enqueue(
            session,
            tenant_id,
            kind=KIND,
            args={"through": rfc3339(through)},
            dedupe_key="due",
            progress={"expired": 0},
        )


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Delete the next findings that are due; the last step appends the audit entry."""
    # Whoever makes a hold waits for it.
    expiry.take_turn(session, tenant_id)
    through = job_rows.args_of(job)["through"]
    wanted = {
        "tenant": tenant_id,
        "after": UUID(hex=job.cursor) if job.cursor else UUID(int=0),
        "below": ids.earliest_at(datetime.fromisoformat(through)),
        "most": MOST,
    }
    ((gone, seen, last),) = cursor(session).execute(_STEP.encode(), wanted).fetchall()
    progress = job_rows.progress_of(job)
    progress["expired"] += gone
    if seen == MOST:
        return Step(last.hex, progress)
    if progress["expired"]:
        chain.append(
            session,
            tenant_id,
            SYSTEM,
            "findings.expire",
            target=("job", ids.text("job", job.id)),
            details={**progress, "through": through},
        )
    return Step(None, progress)


def counts(
    session: Session, tenant_id: UUID, rule: str | None, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Return the days with expired findings, the newest first, before one (`date.toordinal`)."""
    wanted = {
        "tenant": tenant_id,
        "rule": rule,
        "before": None if before is None else date.fromordinal(before),
        "limit": limit,
    }
    return cursor(session, dict_row).execute(_COUNTS, wanted).fetchall()


def represent(day: Mapping[str, Any]) -> dict[str, Any]:
    """Return a day's counts as JSON."""
    severities = {str(each): day["by_severity"].get(str(each), 0) for each in Severity}
    return ExpiredFindingsSchema.of(
        day, day=day["day"].isoformat(), by_severity=BySeveritySchema.of(severities)
    )
