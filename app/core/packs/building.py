"""The durable job that builds a record's pack; one at a time for a record.

A step chooses evidence and reads the bundle; its errand writes the pack and stores it in one
transaction, which locks the bundle's row and checks the lease. A killed build leaves nothing.
Builds from the same source have the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from threading import BoundedSemaphore
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.packs import pack_evidence, store
from app.core.packs.store import Source
from app.core.records import bundles
from app.database import Database
from app.errors import LogPending, NotFound
from app.evidence import pack
from app.evidence.pack import Evidence
from app.lib.crypto.sealing import KeyMissing
from app.models import Job, Record
from app.settings import Settings

KIND = "evidence_pack"
NO_KEY = (
    "MASTER_KEYS lacks the key that sealed this record's bundle, or the one that sealed what signs"
    " packs. The operator has to put it back; then this job can be retried."
)

# A large bundle takes a hundred times the memory of a small one while it is read: few at once.
LARGE = 1024 * 1024
LARGE_AT_ONCE = 2
_bulkhead = BoundedSemaphore(LARGE_AT_ONCE)

_log = structlog.get_logger(__name__)

_A_MOMENT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
_WAITING = "waiting"


class _Full(Exception):
    """Other builds of large bundles run: this one comes back later."""


class _Gone(Exception):
    """The bundle has expired, or another worker has taken over the job."""


def progress(record_id: UUID, phase: str, stored: int = 0, **more: int) -> Mapping[str, Any]:
    """Return what is shown of a job: the record, the phase, and the bytes stored so far."""
    return {"record_id": ids.text("rec", record_id), "phase": phase, "bytes": stored, **more}


def order(session: Session, record: Record) -> Job:
    """Have a record's pack built; return the job that is at it already, if there is one."""
    named = ids.text("rec", record.id)
    return job_queue.enqueue(
        session,
        record.tenant_id,
        kind=KIND,
        args={"record_id": named},
        dedupe_key=named,
        progress=progress(record.id, "queued"),
    )


@dataclass(frozen=True)
class Builder:
    """Builds packs for one worker process."""

    database: Database
    settings: Settings

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Any]:
        """Begin a pack, wait for the log, or find that nothing is to be done."""
        record_id = ids.parse("rec", job_rows.args_of(job)["record_id"])
        record = session.get(Record, (tenant_id, record_id))
        if record is None:
            raise JobFailed("There is no such record.")
        try:
            chosen = pack_evidence.choose(session, self.settings, record)
        except LogPending:
            return _wait(job, record.id)
        except NotFound:
            raise JobFailed("The log has no leaf for this record.") from None
        stored = store.find(session, tenant_id, record.id)
        if stored is not None and pack_evidence.is_current(
            session, self.settings, stored, chosen.source
        ):
            return Step(None, progress(record.id, "built", stored.size, total=stored.size))
        try:
            evidence = pack_evidence.evidence_of(session, self.settings, record, chosen)
        except KeyMissing as error:
            _log.error("pack_without_key", record=ids.text("rec", record.id), reason=str(error))
            raise JobFailed(NO_KEY) from None
        if evidence is None:
            return _expired(record.id)
        return Errand(
            lambda: self._build(job, record.id, chosen.source, evidence), lambda _, step: step
        )

    def _build(self, job: Job, record_id: UUID, source: Source, evidence: Evidence) -> Step:
        """Write the pack and store it; return the step that ends the job, or comes back."""
        tenant_id = job.tenant_id
        try:
            with _bulkhead_for(len(evidence.bundle)):
                archive = pack.write(evidence)
                with self.database.transaction(tenant_id) as session:
                    if not bundles.hold(session, tenant_id, record_id):
                        raise _Gone
                    place = store.begin(session, tenant_id, record_id, source, archive.size)
                    digest = sha256()
                    for number, part in enumerate(in_parts(archive, store.PART_BYTES)):
                        digest.update(part)
                        store.add_part(session, self.settings.master_keys, place, number, part)
                    # Once more: it may be due by now, or another worker have taken over.
                    if not bundles.hold(session, tenant_id, record_id):
                        raise _Gone
                    if not leases.renew(session, job):
                        raise _Gone
                    store.finish(session, place, digest.digest())
        except _Full:
            return Step("room", progress(record_id, "waiting for others"), _A_MOMENT)
        except _Gone:
            return _expired(record_id)
        return Step(None, progress(record_id, "built", archive.size, total=archive.size))


def in_parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Cut a stream into parts of exactly `size` bytes; the last may be shorter."""
    waiting = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            taken = view[: size - len(waiting)]
            waiting += taken
            view = view[len(taken) :]
            if len(waiting) == size:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)


@contextmanager
def _bulkhead_for(size: int) -> Iterator[None]:
    """Bulkhead for large bundles: a build that finds it full comes back later."""
    if size <= LARGE:
        yield
        return
    if not _bulkhead.acquire(blocking=False):
        raise _Full
    try:
        yield
    finally:
        _bulkhead.release()


def _expired(record_id: UUID) -> Step:
    # Nothing is written for a job that another worker has taken over, so this result is not either.
    return Step(None, progress(record_id, "the bundle has expired"))


def _wait(job: Job, record_id: UUID) -> Step:
    """Come back when the log may have the leaf: soon at first, then less and less often."""
    name, _, count = (job.cursor or "").partition(":")
    times = int(count) if name == _WAITING else 0
    wait = min(_A_MOMENT * 2 ** min(max(times - 2, 0), 10), _LONGEST_WAIT)
    return Step(f"{_WAITING}:{times + 1}", progress(record_id, "waiting for the log"), wait)
