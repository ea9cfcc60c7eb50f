"""Requests for a record's pack: the stored one, and the job that builds a better one.

An outdated pack is still valid, and exported until its successor is stored. A job that failed for
good is not enqueued again for an hour, unless it is retried.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import ids
from app.core import signing_keys
from app.core.audit import chain
from app.core.callers import SYSTEM, Actor
from app.core.packs import building, store
from app.core.packs.store import SessionPack, StoredPack
from app.core.records import contents
from app.database import cursor
from app.errors import LogDamaged, LogPending, NotFound
from app.models import Job, Record
from app.settings import Settings

AnyPack = TypeVar("AnyPack", StoredPack, SessionPack)
GIVEN_UP_FOR = timedelta(hours=1)


@dataclass(frozen=True)
class PackState(Generic[AnyPack]):
    """The pack to give out, if any, and the job that builds a better one, if any.

    `is_current` says that there is no better pack to wait for.
    """

    pack: AnyPack | None
    is_current: bool
    job: Job | None


def ask(
    session: Session, settings: Settings, record: Record, *, any_pack: bool = False
) -> PackState[StoredPack]:
    """Return what there is of the record's pack; a better one is begun if one can be made.

    With `any_pack` only where there is none at all. Raises as `load` does.
    """
    found = load(session, settings, record)
    if found.is_current or found.job is not None or (any_pack and found.pack is not None):
        return found
    return PackState(found.pack, found.is_current, building.order(session, record))


def load(session: Session, settings: Settings, record: Record) -> PackState[StoredPack]:
    """Return the same and begin nothing.

    Raises `BundleExpired`, and `LogDamaged` where the log is and the pack's key was revoked.
    """
    contents.require_kept(session, record)
    pack = store.find(session, record.tenant_id, record.id)
    if pack is not None and _is_current(session, settings, record, pack):
        return PackState(pack, is_current=True, job=None)
    if pack is not None and signing_keys.revoked_at(session, pack.source.key_id) is not None:
        # A holder of the revoked key could have made it: verifiers refuse it.
        pack = None
    job = job_for(session, record.tenant_id, building.KIND, ids.text("rec", record.id))
    return PackState(pack, is_current=False, job=job)


def is_settled(session: Session, tenant_id: UUID, job_id: UUID) -> bool:
    """Say whether a job has ended, or waits to be tried again: there is nothing to wait for."""
    row = cursor(session).execute(_SETTLED, (tenant_id, job_id)).fetchone()
    return row is None or bool(row[0])


def note_export(
    session: Session,
    pack: StoredPack | SessionPack,
    taker: Actor | None,
    request_id: str,
    origin: str,
) -> None:
    """Append `evidence.export` at the first export of a pack by each taker.

    None stands for all callers without a key or a link, whom a public record admits: they count as
    one. Call it last in the transaction that decides to give the pack out.
    """
    named = _PUBLIC if taker is None else taker.id
    first = cursor(session).execute(_TAKE, (pack.tenant_id, pack.id, named)).rowcount == 1
    if first:
        chain.append(
            session,
            pack.tenant_id,
            taker or SYSTEM,
            "evidence.export",
            target=pack.target,
            details={"sha256": pack.sha256.hex(), "size": pack.size, _PUBLIC: taker is None},
            request_id=request_id,
            origin=origin,
        )


_PUBLIC = "public"

_SETTLED = """
SELECT finished_at IS NOT NULL OR status = 'retrying' FROM jobs WHERE tenant_id = %s AND id = %s
"""
_TAKE = """
INSERT INTO evidence_exports (tenant_id, pack_id, taker) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING
"""


def _is_current(session: Session, settings: Settings, record: Record, pack: StoredPack) -> bool:
    try:
        wanted = building.choose(session, settings, record)
        return building.is_current(session, settings, pack.source, wanted.source)
    except (LogPending, NotFound):
        # Its leaf waits anew, behind a log that was succeeded: nothing better can be made yet.
        return True
    except LogDamaged:
        # A pack proves itself, and no better one can be made before the log is mended.
        if signing_keys.revoked_at(session, pack.source.key_id) is not None:
            raise
        return True


def job_for(session: Session, tenant_id: UUID, kind: str, key: str) -> Job | None:
    """Return the job that is at it; else the last one, if it gave up within the hour."""
    of_this = (Job.tenant_id == tenant_id, Job.kind == kind, Job.dedupe_key == key)
    at_it = session.scalar(select(Job).where(*of_this, Job.finished_at.is_(None)))
    if at_it is not None:
        return at_it
    given_up = Job.finished_at > func.clock_timestamp() - GIVEN_UP_FOR
    return session.scalar(
        select(Job).where(*of_this, Job.status == "dead", given_up).order_by(Job.id.desc()).limit(1)
    )
