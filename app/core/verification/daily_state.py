"""The sealed state of the daily `verify_audit`: how far a run has come, and when the last began.

Unsealed, the database's owner could let a run end that verified nothing, and so silence the alarm
by age. A seal that is put back names when its run began: no chain passes for verified later.
"""

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.jobs import job_queue
from app.core.jobs.steps import Step
from app.database import cursor, database_now
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import Job

_log = structlog.get_logger(__name__)

# A run that was missed, or came to nothing, is made up for from then on, once an hour.
MISSED = timedelta(hours=25)
AGAIN = timedelta(hours=1)
# Older than this, an operator is alerted.
OVERDUE = timedelta(hours=26)
# Other than the moment that it names, a clock may be set back.
_SLACK = timedelta(minutes=1)

_NAME = "verify_audit"
_KEEP = """
INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed
"""
_READ = "SELECT sealed FROM sealed_notes WHERE name = %s"
_BEGIN = "INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING"
TABLE = "sealed_notes"
"""A database without it is of a release that kept no notes."""

_FIRST_TENANT = "SELECT id FROM tenants ORDER BY id LIMIT 1"


def identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"


def resumed(master_keys: MasterKeys, job: Job) -> tuple[UUID, dict[str, Any]] | None:
    """Return the tenant behind which a run goes on, and its progress; None where it begins.

    It begins anew, which is logged, where the cursor is not as a step left it.
    """
    if job.cursor is None:
        return None
    try:
        state = json.loads(master_keys.open(bytes.fromhex(job.cursor), _run(job)))
    except (ValueError, CannotOpen) as error:
        _log.error("verification_restarted", job=str(job.id), why=str(error))
        return None
    return UUID(hex=state["after"]), state["progress"]


def step(master_keys: MasterKeys, job: Job, after: UUID, progress: dict[str, Any]) -> Step:
    """Return the step that came as far as this tenant."""
    state = canonical_json.dumps({"after": after.hex, "progress": progress})
    return Step(master_keys.seal(state, _run(job)).hex(), progress)


def end(session: Session, master_keys: MasterKeys, progress: dict[str, Any]) -> Step:
    """Return a run's last step; if every chain is verified, seal since when: since it began.

    `progress` has `began`, as `rfc3339` writes it.
    """
    if progress["log"] == "intact" and not progress["failed"]:
        cursor(session).execute(_KEEP, (_NAME, _note(master_keys, progress["began"])))
    return Step(None, progress)


def count_from_now(session: Session, master_keys: MasterKeys) -> None:
    """Seal the first note of a database without one: a run is overdue only from now on.

    Not where it was deleted: a deleted note must not be replaced by a newer one.
    """
    now = rfc3339(database_now(session))
    cursor(session).execute(_BEGIN, (_NAME, _note(master_keys, now)))


def unverified_since(session: Session, master_keys: MasterKeys) -> datetime | None:
    """Return when the last run that verified every chain began, in a session that sees all tenants.

    Where none is known, when the first tenant was made; None where there is none.
    """
    now = database_now(session)
    at = _last(session, master_keys)
    if at is not None and at <= now + _SLACK:
        return at
    row = cursor(session).execute(_FIRST_TENANT).fetchone()
    return None if row is None else ids.made_at(row[0])


def watch(session: Session, master_keys: MasterKeys) -> bool:
    """Say whether a run is to be made up for; log an error when that does not help."""
    since = unverified_since(session, master_keys)
    now = database_now(session)
    if since is None or now - since < MISSED:
        return False
    if now - since > OVERDUE:
        _log.error("audit_not_verified", since=since.isoformat())
    last = job_queue.last_of(session, kind="verify_audit", dedupe_key="all")
    at = None if last is None else last.finished_at
    return at is None or now - at >= AGAIN


def _last(session: Session, master_keys: MasterKeys) -> datetime | None:
    row = cursor(session).execute(_READ, (_NAME,)).fetchone()
    if row is None:
        return None
    try:
        note = json.loads(master_keys.open(bytes(row[0]), identity(_NAME)))
    except CannotOpen:
        return None
    return datetime.fromisoformat(note["since"])


def _note(master_keys: MasterKeys, since: str) -> bytes:
    return master_keys.seal(canonical_json.dumps({"since": since}), identity(_NAME))


def _run(job: Job) -> str:
    return f"jobs/{job.id}/verify_audit"
