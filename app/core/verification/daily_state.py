"""The sealed state of the daily `verify_audit`: when a run began, and how far it has come.

Seals under MASTER_KEYS keep the database's owner from forging either; a step that is not sealed
begins anew. A seal that is put back names the moment when its run began, so no chain passes for
verified later than it was.
"""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.jobs import job_queue
from app.core.jobs.steps import Failed, Step
from app.database import cursor, database_now
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import Job

_log = structlog.get_logger(__name__)

# A run that was missed, or came to nothing, is made up for from then on, once an hour; what has
# begun before goes on no more.
MISSED = timedelta(hours=25)
AGAIN = timedelta(hours=1)
# Older than this, an operator is alerted.
OVERDUE = timedelta(hours=26)
# Other than the moment that it names, a clock may be set back.
_SLACK = timedelta(minutes=1)

# An upgrade and a dropped key leave these; anything else was forged.
_UNSEALED = "its row is not sealed"
_KEY_MISSING = "its key is not in MASTER_KEYS"
_CHANGED = "its row was changed"
_OLD = "of another day"

_NAME = "verify_audit"
_KEEP = """
INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed
"""
_READ = "SELECT sealed FROM sealed_notes WHERE name = %s"
_BEGIN = "INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING"
_KNOWN = """
SELECT FROM pg_class WHERE relname = 'sealed_notes' AND relnamespace = 'public'::regnamespace
"""
_FIRST_TENANT = "SELECT id FROM tenants ORDER BY id LIMIT 1"


def identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"


def resumed(session: Session, master_keys: MasterKeys, job: Job) -> dict[str, Any] | None:
    """Return the progress that a step sealed, if its run may go on from there.

    None where it has not begun, or begins anew, which is said: its row is not as a step of it left
    it, or it began so long ago that another is due.
    """
    if job.cursor is None:
        return None
    progress, why = _opened(master_keys, job)
    if why is None and not _is_of_today(progress, database_now(session)):
        why = _OLD
    if why is None:
        return progress
    say = _log.warning if why in (_UNSEALED, _KEY_MISSING) else _log.error
    say("verification_begun_anew", job=str(job.id), why=why)
    return None


def ended(
    session: Session, master_keys: MasterKeys, job: Job, step: Step | Failed
) -> Step | Failed:
    """Seal what a step came to; of the last one also since when every chain is verified, if it is.

    `progress` of the step has `began`, as `rfc3339` writes it.
    """
    if isinstance(step, Failed):
        return step
    progress = dict(step.progress)
    if step.cursor is not None:
        seal = master_keys.seal(_place(step.cursor, progress), _run(job))
        return replace(step, progress=progress | {"seal": seal.hex()})
    if progress["log"] == "intact" and not progress["failed"]:
        cursor(session).execute(_KEEP, (_NAME, _note(master_keys, progress["began"])))
    return step


def are_known(session: Session) -> bool:
    """Say whether the database is of a release that keeps notes, or a later one."""
    return cursor(session).execute(_KNOWN).fetchone() is not None


def count_from_now(session: Session, master_keys: MasterKeys) -> None:
    """Seal the first note of a database that knew of none: no run is overdue that nobody owed.

    Not of one where it is missing: who deletes a note must not be given another for it.
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


def standing(session: Session, master_keys: MasterKeys) -> str | None:
    """Say since when the chains were not verified, and what to do; None while all is well."""
    since = unverified_since(session, master_keys)
    if since is None or database_now(session) - since < OVERDUE:
        return None
    return (
        f"not verified as a whole since {rfc3339(since)}: see that a worker is up, look for"
        " audit_chain_not_verified and job_step_failed in its log, and ring verify_audit"
    )


def watch(session: Session, master_keys: MasterKeys) -> bool:
    """Say whether a run is to be made up for, and loudly when that does not help."""
    since = unverified_since(session, master_keys)
    now = database_now(session)
    if since is None or now - since < MISSED:
        return False
    if now - since > OVERDUE:
        _log.error("audit_not_verified", since=since.isoformat())
    last = job_queue.last_of(session, kind="verify_audit", dedupe_key="all")
    at = None if last is None else last.finished_at
    return at is None or not now - AGAIN < at <= now


def _last(session: Session, master_keys: MasterKeys) -> datetime | None:
    row = cursor(session).execute(_READ, (_NAME,)).fetchone()
    if row is None:
        return None
    try:
        note = json.loads(master_keys.open(bytes(row[0]), identity(_NAME)))
    except CannotOpen:
        return None
    # One that names a run's end is of before runs were held to their beginning.
    return datetime.fromisoformat(note["since"]) if "since" in note else None


def _note(master_keys: MasterKeys, since: str) -> bytes:
    return master_keys.seal(canonical_json.dumps({"since": since}), identity(_NAME))


def _opened(master_keys: MasterKeys, job: Job) -> tuple[dict[str, Any], str | None]:
    """Return a run's progress without its seal, and why it is none."""
    try:
        progress = json.loads(job.progress or "{}")
        if not isinstance(progress, dict):
            return {}, _CHANGED
        if "seal" not in progress:
            return {}, _UNSEALED
        opened = master_keys.open(bytes.fromhex(progress.pop("seal")), _run(job))
        why = None if opened == _place(job.cursor, progress) else _CHANGED
    except KeyMissing:
        return {}, _KEY_MISSING
    except (ValueError, TypeError, RecursionError, CannotOpen):
        return {}, _CHANGED
    return progress, why


def _is_of_today(progress: dict[str, Any], now: datetime) -> bool:
    return -_SLACK <= now - datetime.fromisoformat(progress["began"]) < MISSED


def _place(place: str | None, progress: dict[str, Any]) -> bytes:
    return canonical_json.dumps({"cursor": place, "progress": progress})


def _run(job: Job) -> str:
    return f"jobs/{job.id}/verify_audit"
