"""Period exports as a tenant sees them: order, read, download and delete them; and their expiry.

An order is a row and a durable job. Parts go `EXPORT_DAYS` after an export was
made, or at once when it is deleted; the row with what was signed stays.
"""

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from marshmallow import fields as plain
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import agents, feeds
from app.core.audit import chain
from app.core.callers import Caller
from app.core.exports import building, parts
from app.database import Database, cursor, database_now
from app.errors import ExportGone, FieldError, Invalid, NotFound, TooManyExports
from app.models import Export, Job
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema
from app.settings import Settings

LONGEST = timedelta(days=3660)
"""The longest period: a statement has a count for each of its days."""

MOST_MAKING, MOST_KEPT = 25, 100
"""Exports of a tenant that are made at a time, and that are kept."""

FILE = "export.ndjson"
# Parts deleted in one transaction, and after how long those of an export that failed are.
_AT_ONCE = 16
_ABANDONED = timedelta(days=1)
_log = structlog.get_logger(__name__)


class State(enum.StrEnum):
    """The state of an export."""

    MAKING = "making"
    READY = "ready"
    FAILED = "failed"
    DELETED = "deleted"


class ExportSchema(AnswerSchema):
    """A period export; `job` makes it."""

    id = fields.Id("exp")
    since = fields.Time(description="Records created from then on, inclusive.")
    until = fields.Time(description="Up to then, exclusive.")
    agent_id = fields.Id("agt", allow_none=True, description="Of this agent alone; null: of all.")
    state = fields.Choice(State)
    job_id = fields.Id("job")
    progress = plain.Dict(
        allow_none=True,
        metadata={"description": "`phase`, `records` listed so far, their `total`, and `bytes`."},
    )
    error = fields.Text(10_000, allow_none=True)
    records = fields.Count(allow_none=True)
    size = fields.Count(description="Bytes so far; of the whole file once it is `ready`.")
    sha256 = fields.Text(64, allow_none=True, description="Of the file; its ETag, too.")
    statement = plain.Dict(
        allow_none=True, metadata={"description": "What was signed (docs/formats.md): the totals."}
    )
    download_url = fields.Text(2000, allow_none=True)
    created_at = fields.Time()
    created_by = party_fields.CallerId()
    made_at = fields.Time(allow_none=True)
    expires_at = fields.Time(allow_none=True, description="When the file goes.")
    deleted_at = fields.Time(allow_none=True, description="When the file went.")


@dataclass(frozen=True)
class Found:
    """An export with its job, if that is still there."""

    export: Export
    job: Job | None

    @property
    def id(self) -> UUID:
        """The export's id, which orders a list."""
        return self.export.id

    @property
    def state(self) -> State:
        """What has become of it."""
        if self.export.deleted_at is not None:
            return State.DELETED
        if self.export.made_at is not None:
            return State.READY
        ended = self.job is None or self.job.status in ("dead", "cancelled")
        return State.FAILED if ended else State.MAKING


def create(session: Session, caller: Caller, wanted: Mapping[str, Any]) -> Found:
    """Order an export of `since` up to `until`, of one agent if `agent_id` is given.

    Raises `Invalid` for a period that is empty, has not ended or is too long, `NotFound` for an
    unknown agent, `TooManyExports`.
    """
    since, until, agent_id = wanted["since"], wanted["until"], wanted.get("agent_id")
    if until <= since:
        raise Invalid(FieldError("/until", "Send a moment after since."))
    if until > database_now(session):
        raise Invalid(FieldError("/until", "Send a moment that has passed."))
    if until - since > LONGEST:
        raise Invalid(FieldError("/since", f"Send a period of at most {LONGEST.days} days."))
    if agent_id is not None:
        agents.find(session, caller, agent_id)
    _require_room(session, caller.tenant_id)
    export_id = ids.new()
    job = building.order(session, caller.tenant_id, export_id)
    export = Export(
        tenant_id=caller.tenant_id,
        id=export_id,
        job_id=job.id,
        since=since,
        until=until,
        agent_id=agent_id,
        created_by=caller.key_id,
        size=0,
    )
    session.add(export)
    session.flush()
    period = {"since": rfc3339(since), "until": rfc3339(until)}
    agent = {} if agent_id is None else {"agent_id": ids.text("agt", agent_id)}
    _append(session, caller, "export.create", export, {**period, **agent})
    return Found(export, job)


_KEPT = """
SELECT count(*), count(j.id) FILTER (WHERE e.made_at IS NULL AND j.finished_at IS NULL)
  FROM exports AS e LEFT JOIN jobs AS j ON j.tenant_id = e.tenant_id AND j.id = e.job_id
 WHERE e.tenant_id = %s AND e.deleted_at IS NULL
"""


def _require_room(session: Session, tenant_id: UUID) -> None:
    # Of two orders at once the second waits here, and then counts the first.
    session.execute(
        select(func.pg_advisory_xact_lock(func.hashtextextended(f"exports:{tenant_id}", 0)))
    )
    ((kept, making),) = cursor(session).execute(_KEPT, (tenant_id,)).fetchall()
    if making >= MOST_MAKING:
        raise TooManyExports(
            f"{making} exports are being made; order another when one of them is ready."
        )
    if kept >= MOST_KEPT:
        raise TooManyExports(f"{kept} exports are kept; delete one that is no longer needed.")


def rows(session: Session, tenant_id: UUID, before: UUID | None, limit: int) -> Sequence[Found]:
    """Return up to `limit` exports of a tenant, newest first, older than the id `before`."""
    query = (
        select(Export, Job)
        .outerjoin(Job, (Job.tenant_id == Export.tenant_id) & (Job.id == Export.job_id))
        .where(Export.tenant_id == tenant_id)
        .order_by(Export.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(Export.id < before)
    found = [Found(export, job) for export, job in session.execute(query).all()]
    return feeds.fitting(found, lambda each: (each.export.statement or b"").decode())


def find(session: Session, tenant_id: UUID, export_id: UUID | None) -> Found:
    """Return one export of a tenant. Raises `NotFound`."""
    export = session.get(Export, (tenant_id, export_id)) if export_id else None
    if export is None:
        raise NotFound("There is no export with this id.")
    return Found(export, session.get(Job, (tenant_id, export.job_id)))


def find_made(session: Session, tenant_id: UUID, export_id: UUID | None) -> Export:
    """Return an export that is ready. Raises `NotFound` before, `ExportGone` afterwards."""
    found = find(session, tenant_id, export_id)
    if found.state == State.DELETED:
        raise ExportGone("This export's file is gone; its statement is not. Order another.")
    if found.state != State.READY:
        raise NotFound(f"This export is not ready: its state is {found.state}.")
    return found.export


_TAKE = """
INSERT INTO export_takers (tenant_id, export_id, key_id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""


def note_download(session: Session, caller: Caller, export: Export) -> None:
    """Append `export.download` at the first download of an export by each key."""
    values = (caller.tenant_id, export.id, caller.key_id)
    if cursor(session).execute(_TAKE, values).rowcount == 1:
        digest = (export.sha256 or b"").hex()
        _append(session, caller, "export.download", export, {"sha256": digest})


def delete(session: Session, caller: Caller, export_id: UUID | None) -> None:
    """Delete an export's file, or stop its making. Raises `NotFound`.

    Its parts go with the next run of the expiry.
    """
    export = find(session, caller.tenant_id, export_id).export
    session.refresh(export, with_for_update=True)
    if export.deleted_at is None:
        export.deleted_at = database_now(session)
        session.flush()
        _append(session, caller, "export.delete", export, {})


def _append(
    session: Session, caller: Caller, action: str, export: Export, details: Mapping[str, Any]
) -> None:
    target = ("export", ids.text("exp", export.id))
    chain.append_by(session, caller, action, target=target, details=details)


def represent(settings: Settings, found: Found) -> dict[str, Any]:
    """Return an export as JSON."""
    export, job, state = found.export, found.job, found.state
    expires_at = None
    if export.made_at is not None:
        expires_at = export.made_at + timedelta(days=settings.export_days)
    url = f"{settings.base_url}/v1/exports/{ids.text('exp', export.id)}/{FILE}"
    return ExportSchema.of(
        export,
        state=str(state),
        progress=json.loads(job.progress) if job and job.progress else None,
        error=job.error if job and state == State.FAILED else None,
        sha256=export.sha256.hex() if export.sha256 else None,
        statement=json.loads(export.statement) if export.statement else None,
        download_url=url if state == State.READY else None,
        expires_at=rfc3339(expires_at) if expires_at else None,
    )


# What is due: parts of exports that were deleted, whose days have passed, or whose job gave up.
_DUE = """
SELECT e.tenant_id, e.id FROM exports AS e
 WHERE e.deleted_at IS NULL
   AND coalesce(e.made_at < clock_timestamp() - %(days)s,
                e.created_at < clock_timestamp() - %(abandoned)s AND NOT EXISTS (
                    SELECT FROM jobs AS j WHERE j.tenant_id = e.tenant_id AND j.id = e.job_id
                       AND j.finished_at IS NULL))
    OR e.deleted_at IS NOT NULL AND EXISTS (
                    SELECT FROM export_parts AS p
                     WHERE p.tenant_id = e.tenant_id AND p.export_id = e.id)
 ORDER BY e.tenant_id, e.id LIMIT %(most)s
"""
_EXPIRE = """
UPDATE exports SET deleted_at = clock_timestamp()
 WHERE tenant_id = %s AND id = %s AND deleted_at IS NULL
"""


def expire(database: Database, settings: Settings, more: Callable[[], bool]) -> None:
    """Delete the parts of exports that are due, some in each transaction, while `more()` says so.

    Their objects are erased after their rows.
    """
    values = {
        "days": timedelta(days=settings.export_days),
        "abandoned": _ABANDONED,
        "most": MOST_KEPT,
    }
    with database.across_tenants() as session:
        due = cursor(session).execute(_DUE, values).fetchall()
    for place in due:
        if not more():
            return
        with database.transaction(place[0]) as session:
            cursor(session).execute(_EXPIRE, place)
        done = False
        while not done and more():
            with database.transaction(place[0]) as session:
                done = parts.delete_some(session, place[0], place[1], _AT_ONCE)
