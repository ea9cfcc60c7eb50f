"""Expiry: a durable job for each tenant deletes bundles that are due, in batches.

Each step looks at some records by age and deletes their bundles, packs and words. What a legal hold
keeps is passed over; its release enqueues a job of its own. Each week a job looks through all that
has expired, for records made while the database's clock was set back.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.erasure import erasing
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Step
from app.core.records import bundles, retention, search
from app.database import cursor
from app.models import Hold, Job, Tenant

KIND = "expire_bundles"
# Limits of one transaction, which takes some tens of milliseconds, and at most half a second.
MOST_RECORDS = 5_000
MOST_BYTES = 32 * 1024 * 1024

_LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)
_FIRST_ID = UUID(int=0)


class _Aged(NamedTuple):
    """A record; `size` is that of its bundle and packs, None if it is deleted or held."""

    at: datetime
    id: UUID
    size: int | None = None


def tenants_with_retention(session: Session) -> Sequence[UUID]:
    """Return every tenant whose bundles may be due, in a session that sees all tenants."""
    return session.scalars(
        select(Tenant.id)
        .where(Tenant.bundle_retention_days.is_not(None) | Tenant.expired_through.is_not(None))
        .order_by(Tenant.id)
    ).all()


def enqueue_due(session: Session, tenant_id: UUID) -> Job | None:
    """Enqueue the tenant's expiry job; None when no bundle is due."""
    take_turn(session, tenant_id)
    through = retention.due_before(session, tenant_id)
    if through is None:
        return None
    # One that looks already may end before what is due now.
    looks = job_queue.open_job(session, tenant_id, KIND, _ALL) is not None
    look_through = not looks and cursor(session).execute(_LOOK_THROUGH, (tenant_id,)).rowcount == 1
    first: datetime | None = _LONG_AGO
    if not look_through:
        first = cursor(session, scalar_row).execute(_FIRST_DUE, (tenant_id,)).fetchone()
    if first is None:
        cursor(session).execute(_SKIPPED, (through, tenant_id))
        return None
    return job_queue.enqueue(
        session,
        tenant_id,
        kind=KIND,
        args={"from": rfc3339(first), "through": rfc3339(through)},
        dedupe_key=_ALL if look_through else "due",
        progress={"expired": 0},
    )


_ALL = "all"
_LOOK_THROUGH = """
UPDATE tenants SET looked_through_at = clock_timestamp()
 WHERE id = %s AND expired_through IS NOT NULL
   AND looked_through_at < clock_timestamp() - interval '7 days'
"""
_FIRST_DUE = f"""
SELECT r.created_at FROM records AS r JOIN tenants AS t ON t.id = r.tenant_id
 WHERE r.tenant_id = %s AND r.created_at <= {retention.DUE_BEFORE}
   AND r.created_at > coalesce(t.expired_through, '-infinity')
   AND EXISTS (SELECT FROM bundles AS b WHERE b.tenant_id = r.tenant_id AND b.record_id = r.id)
   AND NOT {retention.held()}
 ORDER BY r.created_at, r.id LIMIT 1
"""


_AGED = f"""
SELECT r.created_at, r.id,
       CASE WHEN NOT {retention.held()} THEN
       b.size + (SELECT coalesce(sum(p.size), 0)::bigint FROM evidence_packs AS p
                  WHERE p.tenant_id = r.tenant_id AND p.record_id = r.id) END
  FROM records AS r
  LEFT JOIN bundles AS b ON b.tenant_id = r.tenant_id AND b.record_id = r.id
 WHERE r.tenant_id = %(tenant)s AND r.created_at <= %(through)s
   AND (r.created_at, r.id) > (%(at)s, %(id)s) {{scope}}
 ORDER BY r.created_at, r.id LIMIT %(limit)s
"""


def _aged(
    session: Session,
    tenant_id: UUID,
    through: datetime,
    after: _Aged,
    hold: Mapping[str, str] | None = None,
) -> list[_Aged]:
    wanted = {
        "tenant": tenant_id,
        "through": through,
        "at": after.at,
        "id": after.id,
        "limit": MOST_RECORDS,
        **(hold or {}),
    }
    scope = " ".join(_SCOPES[name] for name in hold or ())
    return [_Aged(*row) for row in cursor(session).execute(_AGED.format(scope=scope), wanted)]


# The records of a hold, by what its job has in `hold`.
_SCOPES = {
    "record_id": "AND r.id = %(record_id)s",
    "session_id": "AND r.session_id = %(session_id)s",
    "agent_id": "AND r.agent_id = %(agent_id)s",
    "since": "AND r.created_at >= %(since)s",
    "until": "AND r.created_at < %(until)s",
}


def enqueue_released(session: Session, tenant_id: UUID, hold: Hold) -> None:
    """Enqueue a job for what a released hold kept beyond its time; nothing if none is due."""
    through = retention.due_before(session, tenant_id)
    if through is None:
        return
    named = {name: getattr(hold, name) for name in _SCOPES}
    scope = {name: value for name, value in named.items() if value is not None}
    job_queue.enqueue(
        session,
        tenant_id,
        kind=KIND,
        args={
            "from": rfc3339(_LONG_AGO),
            "through": rfc3339(through),
            "hold_id": ids.text("hld", hold.id),
            "hold": {
                name: rfc3339(value) if isinstance(value, datetime) else value.hex
                for name, value in scope.items()
            },
        },
        dedupe_key=f"hold {hold.id.hex}",
        progress={"expired": 0},
    )


def take_turn(session: Session, tenant_id: UUID) -> None:
    """Wait for a step of expiry that runs, and keep out the next one until the commit.

    Whoever makes a hold takes it: a step sees the hold, or was over before it was answered.
    """
    job_rows.take_turns(session, f"{tenant_id}:{KIND}")
    # A plan for a small table of holds would read all of it for each record.
    cursor(session).execute("SET LOCAL enable_seqscan = off")


# What is held need not be looked at by each tick: its release enqueues a job for it.
_SKIPPED = """
UPDATE tenants SET expired_through = greatest(expired_through, %s)
 WHERE id = %s
   AND EXISTS (SELECT FROM holds AS h WHERE h.tenant_id = tenants.id AND h.released_at IS NULL)
"""
_DONE = "UPDATE tenants SET expired_through = greatest(expired_through, %s) WHERE id = %s"


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Delete the due bundles among the next records; the last step appends the audit entry."""
    take_turn(session, tenant_id)
    args = job_rows.args_of(job)
    through = datetime.fromisoformat(args["through"])
    at, _, last = (job.cursor or f"{args['from']}/{_FIRST_ID.hex}").rpartition("/")
    after = _Aged(datetime.fromisoformat(at), UUID(hex=last))
    found = _aged(session, tenant_id, through, after, args.get("hold"))
    # 32 MiB of bundles and packs, or one larger one: deleting costs as much as storing.
    sizes = list(accumulate(each.size or 0 for each in found))
    batch = [each for n, each in enumerate(found) if n == 0 or sizes[n] <= MOST_BYTES]
    wanted = [each.id for each in batch if each.size is not None]
    # The words second: the index may be writing them while it holds the bundles.
    gone = bundles.delete(session, tenant_id, wanted)
    search.forget_content(session, tenant_id, wanted)
    progress = json.loads(job.progress or "{}")
    progress["expired"] += gone
    if len(batch) == MOST_RECORDS or len(batch) < len(found):
        return Step(f"{rfc3339(batch[-1].at)}/{batch[-1].id.hex}", progress)
    if "hold" not in args:
        cursor(session).execute(_DONE, (through, tenant_id))
    erasing.order_any(session, tenant_id)
    if gone := progress["expired"]:
        named = ("through", "hold_id")
        details = {"expired": gone} | {name: args[name] for name in named if name in args}
        target = ("job", ids.text("job", job.id))
        chain.append(session, tenant_id, SYSTEM, "bundles.expire", target=target, details=details)
    return Step(None, progress)
