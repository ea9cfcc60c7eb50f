"""Sweeping the object store: what was written there, and no row has ever named, is deleted.

Names sort by time. So each object is looked at once, a day after it was written: by then no
transaction is left that could commit a row with it (`writing.FRESH`). The next sweep goes on behind
the last name. Names that are not ours are left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

import structlog
from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.blobs import rows
from app.core.blobs.store import Blob, BlobStore, first_id, named
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, Step
from app.database import Database, cursor
from app.models import Job

KIND = "sweep_objects"
GRACE = timedelta(days=1)

_AT_ONCE = 1_000
_SETTLED = "SELECT least(settled_before(), clock_timestamp())"

_log = structlog.get_logger(__name__)


def enqueue(session: Session) -> None:
    """Enqueue the next sweep, which goes on where the last one ended."""
    last = job_queue.last_of(session, kind=KIND, dedupe_key="all")
    after = "" if last is None else job_rows.progress_of(last).get("after", "")
    if last is not None and last.finished_at is None:
        return
    job_queue.recur(session, kind=KIND, dedupe_key="all", args={"after": after})


@dataclass(frozen=True)
class Sweeper:
    """Sweeps for one worker process."""

    database: Database
    blobs: BlobStore | None

    def step(self, session: Session, _: object, job: Job) -> Step | Errand[tuple[str, int, bool]]:
        """Look at the next names."""
        progress = job_rows.progress_of(job) or {"swept": 0, **job_rows.args_of(job)}
        store = self.blobs
        if store is None:
            return Step(None, progress)
        settled = cursor(session, scalar_row).execute(_SETTLED).fetchone()
        if settled is None:
            return Step(None, progress)
        below = first_id(settled - GRACE)

        def record(_: Session, found: tuple[str, int, bool]) -> Step:
            after, swept, more = found
            shown = {"after": after, "swept": progress["swept"] + swept}
            return Step("sweeping" if more else None, shown)

        return Errand(lambda: self._sweep(store, progress["after"], below), record)

    def _sweep(self, store: BlobStore, after: str, below: str) -> tuple[str, int, bool]:
        """Return the last name that was looked at, how many were deleted, and whether more come."""
        names = [name for name in islice(store.names(after), _AT_ONCE) if name < below]
        found = [blob for blob in map(named, names) if blob is not None]
        with self.database.across_tenants() as session:
            kept = rows.named(session, found) | rows.retired(session, found)
        gone: Sequence[Blob] = [each for each in found if each not in kept]
        if gone:
            store.erase(gone)
            _log.info("objects_swept", count=len(gone), first=gone[0].name)
        return (names[-1] if names else after), len(gone), len(names) == _AT_ONCE
