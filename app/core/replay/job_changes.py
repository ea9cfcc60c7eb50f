"""Jobs as their tenant sees them, and its changes to them: cancel, retry, resume, all audited."""

import enum
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.jobs import control
from app.core.replay import bulk_replay, replay_deliveries, send_now
from app.models import Job

MOST_AT_ONCE = 1_000


class Bulk(enum.StrEnum):
    """What is done to many jobs at once."""

    RETRY = "retry"
    CANCEL = "cancel"


# Jobs whose deliveries may end after them.
_COUNTERS: Mapping[str, Callable[[Session, Job], dict[str, int]]] = {
    bulk_replay.KIND: replay_deliveries.count_outcomes,
    send_now.KIND: send_now.count_outcomes,
}


def represent(session: Session, job: Job) -> dict[str, Any]:
    """Return a job's JSON representation; what it left waiting at its end is counted anew."""
    told = control.represent(job)
    progress = told["progress"] or {}
    waits = progress.get("waiting") or progress.get("retrying")
    if job.finished_at is not None and job.kind in _COUNTERS and waits:
        told["progress"] = progress | _COUNTERS[job.kind](session, job)
    return told


VERBS: Mapping[str, Callable[[Session, UUID, UUID | None], Job]] = {
    "retry": control.retry,
    "cancel": bulk_replay.cancel,
    "resume": control.resume,
}


def change(session: Session, caller: Caller, verb: str, job_id: UUID | None) -> dict[str, Any]:
    """Retry a dead job, cancel an open one, or resume a cancelled one, by its name in `VERBS`.

    Returns the job's representation. Raises `NotFound`, and `NotResumable` if the job is in another
    state, or must run to its end.
    """
    job = VERBS[verb](session, caller.tenant_id, job_id)
    target = ("job", ids.text("job", job.id))
    chain.append_by(session, caller, f"job.{verb}", target=target, details={"kind": job.kind})
    return represent(session, job)


def matching(session: Session, tenant_id: UUID, verb: Bulk, kind: str | None) -> list[UUID]:
    """Lock the oldest 1,000 jobs that `verb` applies to, but for locked ones; return their ids."""
    query = select(Job.id).where(Job.tenant_id == tenant_id).order_by(Job.id).limit(MOST_AT_ONCE)
    if kind is not None:
        query = query.where(Job.kind == kind)
    if verb is Bulk.RETRY:
        query = query.where(Job.status == "dead")
    else:
        query = query.where(Job.kind.in_(control.CANCELLABLE), Job.finished_at.is_(None))
    return list(session.scalars(query.with_for_update(skip_locked=True)))


def change_all(session: Session, caller: Caller, verb: Bulk, kind: str | None) -> int:
    """Retry all dead jobs of a kind, or cancel all open ones; return how many (1,000 at most)."""
    found = matching(session, caller.tenant_id, verb, kind)
    for job_id in found:
        change(session, caller, verb, job_id)
    return len(found)
