"""Chooses the checkpoint of a tick: the same for the timestamp authority and every witness.

The log publishes each second. If each job took the newest checkpoint when it runs, witnesses would
cosign different ones, and a quorum would rarely meet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.anchoring import incidents
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Failed
from app.core.log import generations, publication
from app.core.log.publication import Published
from app.database import cursor, database_now
from app.lib import canonical_json
from app.lib.outbound.client import Outbound
from app.models import Job

EVERY = timedelta(minutes=10)
# A checkpoint published before the last tick but one, and a job's tries, should be anchored by now.
OVERDUE = 2 * EVERY + timedelta(minutes=5)
# A limit on invalid rows per tick: a table full of them must not keep it busy.
MOST_VERIFIED = 16
# While a candidate waits for its quorum: a witness that is back is asked within so long.
AGAIN = timedelta(seconds=15)

_NO_WORKER = "No worker has finished the job that asks for it: see that one is up."
_NONE_STORED = (
    "The job that asks for it ends, and nothing that holds is stored: see that every worker was"
    " given the same settings."
)

_ASKED_AT = "asked_at"
_BEHIND = """
SELECT coalesce(published_at, signed_at) FROM checkpoints
 WHERE generation = %s AND size > %s AND coalesce(note, unpublished_note) IS NOT NULL
 ORDER BY size LIMIT 1
"""


def chosen(session: Session) -> Published | None:
    """Return what a tick that comes now asks for; None of a log that has not begun, or is empty."""
    last = publication.current(session)
    return None if last is None or last.checkpoint.size == 0 else last


def shown(session: Session) -> Published | None:
    """Return what a tick that comes now asks witnesses for: a candidate, or as `chosen` does."""
    return publication.current_candidate(session) or chosen(session)


def order(
    session: Session,
    last: Published,
    *,
    kind: str,
    key: str,
    part: str,
    since: Callable[[], datetime],
    **args: str,
) -> None:
    """Enqueue a request to one authority or witness for this checkpoint.

    A request for an earlier checkpoint goes on with that, since the others were asked for it too;
    after a failed try it is for this checkpoint from now on. It is an incident of `part` that
    nothing was vouched for since `since()`, longer than `OVERDUE`, whatever the job's row says; not
    before a tick asked lately: after a standstill there was no chance to answer. `args` are added
    to the job's own.
    """
    now = database_now(session)
    before = job_queue.last_of(session, kind=kind, dedupe_key=key)
    if before is not None and _asked_ago(before, now) <= OVERDUE:
        begun = since()
        if now - begun > OVERDUE:
            silent = _NO_WORKER if before.finished_at is None else _NONE_STORED
            incidents.begin(session, part, begun, before.error or silent)
    _ask(session, last, now, kind=kind, key=key, **args)


def hurry(session: Session, candidate: Published, *, kind: str, key: str, **args: str) -> Job:
    """Enqueue a request to one witness for a candidate, unless one is open, or failed just now.

    After a failure the witness is left alone for `AGAIN`; after an answer the next goes at once.
    """
    now = database_now(session)
    before = job_queue.last_of(session, kind=kind, dedupe_key=key)
    if before is not None:
        is_for_it = _place(candidate).items() <= job_rows.args_of(before).items()
        rests = before.error is not None or is_for_it
        if before.status in ("queued", "running") or (rests and _asked_ago(before, now) <= AGAIN):
            return before
    return _ask(session, candidate, now, kind=kind, key=key, **args)


def _ask(
    session: Session, last: Published, now: datetime, *, kind: str, key: str, **args: str
) -> Job:
    place = _place(last)
    job = job_queue.recur(session, kind=kind, dedupe_key=key, args=place | args, after_failure=True)
    # Also of one that is open and goes on as it is.
    job.args = canonical_json.dumps(job_rows.args_of(job) | {_ASKED_AT: rfc3339(now)}).decode()
    session.flush()
    return job


def _place(last: Published) -> dict[str, Any]:
    return {"generation": last.generation.number, "size": last.checkpoint.size}


def _asked_ago(job: Job, now: datetime) -> timedelta:
    """Return how long ago a tick asked by this job."""
    return now - datetime.fromisoformat(job_rows.args_of(job)[_ASKED_AT])


def checkpoint(session: Session, job: Job) -> Published | None:
    """Return the checkpoint that a job is to show; None if that log has been succeeded since."""
    args, generation = job_rows.args_of(job), generations.newest(session)
    if generation is None or generation.number != args["generation"]:
        return None
    waits = publication.candidate(session, generation)
    if waits is not None and waits.checkpoint.size == args["size"]:
        return waits
    return publication.at(session, generation, args["size"])


def unvouched_since(
    session: Session, number: int, sizes: Sequence[int], holds: Callable[[int], bool]
) -> datetime:
    """Return when the first checkpoint of a log was published behind all that one vouched for.

    `sizes` are the newest `MOST_VERIFIED` of which there is a row, newest first; each counts only
    if it `holds`. If none of so many does, it is the oldest of them.
    """
    held = next(filter(holds, sizes), None)
    if held is None:
        held = sizes[-1] - 1 if len(sizes) == MOST_VERIFIED else 0
    row = cursor(session).execute(_BEHIND, (number, held)).fetchone()
    return database_now(session) if row is None else row[0]


def failed(job: Job, detail: str) -> Failed:
    """Return a try that failed; the last one rests until the clock asks again."""
    return Failed(detail, for_good=job.attempts >= _MOST_RETRIES)


DEADLINE_SECONDS = 15.0
MAX_BODY_BYTES = 64 * 1024

# Some minutes of tries (5 s, 30 s and 120 s apart); the clock begins again after ten.
_MOST_RETRIES = 3


class NoAnswer(Exception):
    """No answer that could be read; the text explains."""


@dataclass(frozen=True)
class Reply:
    """A whole answer: its status and body."""

    status: int
    body: bytes

    def ok(self) -> bytes:
        """Return the body of a 200. Raises `NoAnswer` for any other status."""
        if self.status != 200:
            raise NoAnswer(f"It answered with the status {self.status}.")
        return self.body


def post(outbound: Outbound, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """POST to a URL that the operator chose. Raises `NoAnswer` unless a whole answer came."""
    answer = outbound.send(
        url,
        body,
        headers,
        deadline_seconds=DEADLINE_SECONDS,
        kept_bytes=MAX_BODY_BYTES,
        body_seconds=DEADLINE_SECONDS,
    )
    if answer.status is None or answer.error is not None:
        raise NoAnswer(f"No answer: {answer.error or answer.failure}.")
    if len(answer.body) >= MAX_BODY_BYTES:
        raise NoAnswer(f"The answer is longer than {MAX_BODY_BYTES} bytes.")
    return Reply(answer.status, answer.body)
