"""Steps of durable jobs: what a handler returns, and how its outcome is written.

A step's effect and the job's `cursor` commit together, so a killed job resumes. An errand is slow
or external work between two transactions, under a renewed lease. A failed job is retried with
backoff, then is `dead` until it is retried by hand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW, dump, write
from app.models import Job

LATE_AT_MOST = timedelta(seconds=1)
# Seconds before each further try of a job that failed; after the last it is dead.
RETRY_WAITS = (5.0, 30.0, 120.0, 600.0, 3600.0)
_Said = TypeVar("_Said")
# Tenant and job.
Name: TypeAlias = tuple[UUID, UUID]


@dataclass(frozen=True)
class Step:
    """The result of one step of a job: its next cursor (None: it is done), and its progress.

    `stopped` is why the job ends as `cancelled` until it is resumed.

    `then` is called after the commit, and may name another job that waited for this step: the same
    worker goes on with it.
    """

    cursor: str | None
    progress: Mapping[str, Any]
    wait: timedelta = timedelta(0)
    then: Callable[[], Name | None] = lambda: None
    stopped: str | None = None


@dataclass(frozen=True)
class Failed:
    """A step that came to nothing, and says why; what it wrote stays.

    It is tried again like one that raised, unless `for_good`.
    """

    error: str
    for_good: bool = False


@dataclass(frozen=True)
class Errand(Generic[_Said]):
    """A step that may take long, or talks to others: not while a transaction is open.

    `talk` runs outside any; `record` gets what it returned, in the transaction that ends the step.
    A worker that dies in between is followed by another that repeats it: `talk` must allow that.
    """

    talk: Callable[[], _Said]
    record: Callable[[Session, _Said], Step | Failed]


class JobFailed(Exception):
    """The job cannot succeed, however often it is tried; the text is shown to its owner."""


def advance(session: Session, job: Job, step: Step) -> bool:
    """Write what a step did, in the step's own transaction.

    False when the claim was taken over or the job was cancelled meanwhile: the caller must then
    roll its effect back.
    """
    if step.cursor is None:
        values: dict[str, Any] = {"status": "succeeded", "finished_at": NOW}
    elif step.stopped is not None:
        values = {"status": "cancelled", "finished_at": NOW, "cursor": step.cursor}
    else:
        # Counted from when this step was due: the sweep rings whole seconds, and a wait counted
        # from now would each time lose the rest of one. What was missed for longer is not made up.
        was_due = func.greatest(Job.run_at, NOW - LATE_AT_MOST)
        values = {"status": "running", "cursor": step.cursor, "run_at": was_due + step.wait}
    return write(
        session,
        job,
        attempts=0,
        claims_lost=0,
        locked_until=None,
        ring_at=None,
        error=step.stopped,
        progress=dump(step.progress),
        **values,
    )


def fail(session: Session, job: Job, error: str, *, for_good: bool = False) -> bool:
    """Write that a step failed: try again later, or never if `for_good` or tried too often."""
    if for_good or job.attempts >= len(RETRY_WAITS):
        return write(
            session,
            job,
            status="dead",
            attempts=job.attempts + 1,
            claims_lost=0,
            locked_until=None,
            error=error,
            finished_at=NOW,
        )
    return write(
        session,
        job,
        status="retrying",
        attempts=job.attempts + 1,
        claims_lost=0,
        locked_until=None,
        ring_at=None,
        error=error,
        run_at=NOW + timedelta(seconds=RETRY_WAITS[job.attempts]),
    )
