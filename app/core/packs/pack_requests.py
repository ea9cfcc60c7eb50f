"""Requests for a pack: the stored one, and the job that builds a better one.

An outdated pack is still valid, and exported until its successor is stored. A job that failed for
good is not enqueued again for an hour, unless it is retried.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.audit import chain
from app.core.callers import SYSTEM, Actor
from app.core.packs import building, store
from app.core.packs.building import Subject
from app.core.packs.store import Pack
from app.database import cursor
from app.errors import LogDamaged, LogPending, NotFound
from app.models import Job
from app.settings import Settings

GIVEN_UP_FOR = timedelta(hours=1)
_PUBLIC = "public"

_TAKE = """
INSERT INTO evidence_exports (tenant_id, pack_id, taker) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class PackState:
    """The pack to give out, if any, and the job that builds a better one, if any.

    `is_current` says that there is no better pack to wait for.
    """

    pack: Pack | None
    is_current: bool
    job: Job | None


def ask(
    session: Session, settings: Settings, subject: Subject, *, any_pack: bool = False
) -> PackState:
    """Return what there is of a pack; a better one is begun if one can be made.

    With `any_pack` only where there is none at all. Raises `BundleExpired`, and `LogDamaged` where
    the log is and there is no pack, or its key was revoked.
    """
    subject.require_kept(session)
    pack, state = store.find(session, subject.about), subject.state(session)
    if pack is not None and pack.source.further.split("/")[0] != state.split("/")[0]:
        # A bundle in it has expired since, or is kept again.
        pack = None
    is_revoked = pack is not None and (
        signing_keys.revoked_at(session, pack.source.key_id) is not None
    )
    try:
        chosen = building.choose(session, settings, subject, state)
        if pack is None:
            building.prove(session, chosen)
        is_current = pack is not None and building.is_current(
            session, settings, pack.source, chosen.source
        )
    except (LogPending, NotFound):
        # Its leaf waits, anew behind a log that was succeeded: nothing better can be made yet.
        is_current = pack is not None
    except LogDamaged:
        # A pack proves itself, and no better one can be made before the log is mended.
        if pack is None or is_revoked:
            raise
        is_current = True
    if is_current:
        return PackState(pack, is_current=True, job=None)
    if is_revoked:
        # A holder of the revoked key could have made it: verifiers refuse it.
        pack = None
    job = _job_for(session, subject)
    if job is None and not (any_pack and pack):
        job = building.order(session, subject)
    return PackState(pack, is_current=False, job=job)


def _job_for(session: Session, subject: Subject) -> Job | None:
    """Return the job that is at it; else the last one, if it gave up within the hour."""
    of_this = (
        Job.tenant_id == subject.about.tenant_id,
        Job.kind == subject.job_kind,
        Job.dedupe_key == subject.about.text,
    )
    at_it = session.scalar(select(Job).where(*of_this, Job.finished_at.is_(None)))
    if at_it is not None:
        return at_it
    given_up = Job.finished_at > func.clock_timestamp() - GIVEN_UP_FOR
    return session.scalar(
        select(Job).where(*of_this, Job.status == "dead", given_up).order_by(Job.id.desc()).limit(1)
    )


def is_settled(session: Session, tenant_id: UUID, job_id: UUID) -> bool:
    """Say whether a job has ended, or waits to be tried again: there is nothing to wait for."""
    job = session.get(Job, (tenant_id, job_id))
    return job is None or job.finished_at is not None or job.status == "retrying"


def note_export(
    session: Session, pack: Pack, taker: Actor | None, request_id: str, origin: str
) -> None:
    """Append `evidence.export` at the first export of a pack by each taker.

    None stands for all callers without a key or a link, whom a public record admits: they count as
    one. Call it last in the transaction that decides to give the pack out.
    """
    tenant_id, named = pack.about.tenant_id, _PUBLIC if taker is None else taker.id
    if cursor(session).execute(_TAKE, (tenant_id, pack.id, named)).rowcount == 1:
        chain.append(
            session,
            tenant_id,
            taker or SYSTEM,
            "evidence.export",
            target=(pack.about.kind, pack.about.text),
            details={"sha256": pack.sha256.hex(), "size": pack.size, _PUBLIC: taker is None},
            request_id=request_id,
            origin=origin,
        )
