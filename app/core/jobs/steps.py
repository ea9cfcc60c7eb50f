"""Steps of durable jobs: the results of handlers, and how they are recorded.

A step's effect and the job's `cursor` commit together, so a killed job resumes. An errand is slow
or external work between two transactions, under a renewed lease. A failed job is retried with
backoff, then is `dead` (a dead letter) until retried by hand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW, dump, write
from app.models import Job

LATE_AT_MOST = timedelta(seconds=1)
# Seconds before each retry of a failed job (backoff); after the last it is dead.
RETRY_WAITS = (5.0, 30.0, 120.0, 600.0, 3600.0)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Step:
    """The result of one step of a job: its next cursor (None: it is done), and its progress.

    `stopped` is the reason why the job becomes `cancelled` until it is resumed.
    """

    cursor: str | None
    progress: Mapping[str, Any]
    wait: timedelta = timedelta(0)
    stopped: str | None = None


@dataclass(frozen=True)
class Failed:
    """A failed step and its error; its writes are committed all the same.

    It is retried like a step that raised, unless `for_good`.
    """

    error: str
    for_good: bool = False


@dataclass(frozen=True)
class Errand(Generic[_Result]):
    """A step that may take long or uses the network, so it must not hold a transaction open.

    `talk` runs outside any transaction; `record` gets its result, in the transaction that ends the
    step. If a worker dies in between, another repeats `talk`, which must tolerate that.
    """

    talk: Callable[[], _Result]
    record: Callable[[Session, _Result], Step | Failed]


class JobFailed(Exception):
    """A permanent failure of the job, which is not retried; the text is shown to its owner."""


def advance(session: Session, job: Job, step: Step) -> bool:
    """Record a step's result, in the step's own transaction.

    False when the claim was taken over or the job was cancelled meanwhile: the caller must then
    roll back the step's effect.
    """
    if step.cursor is None:
        values: dict[str, Any] = {"status": "succeeded", "finished_at": NOW}
    elif step.stopped is not None:
        values = {"status": "cancelled", "finished_at": NOW, "cursor": step.cursor}
    else:
        # Counted from when this step was due: the sweep rings once a second, and a wait counted
        # from now would lose a fraction of a second each time. Longer delays are not made up.
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


def is_last(job: Job, *, for_good: bool = False) -> bool:
    """Say whether a job whose step fails now is dead, and not tried again."""
    return for_good or job.attempts >= len(RETRY_WAITS)


def fail(session: Session, job: Job, error: str, *, for_good: bool = False) -> bool:
    """Record a failed step: retry with backoff; dead if `for_good` or after the last retry."""
    values: dict[str, Any] = {"status": "dead", "finished_at": NOW}
    if not is_last(job, for_good=for_good):
        wait = timedelta(seconds=RETRY_WAITS[job.attempts])
        values = {"status": "retrying", "ring_at": None, "run_at": NOW + wait}
    return write(
        session,
        job,
        attempts=job.attempts + 1,
        claims_lost=0,
        locked_until=None,
        error=error,
        **values,
    )
