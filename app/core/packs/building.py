"""The durable job that builds a record's pack; one at a time for a record.

A step chooses evidence and reads the bundle, writes the pack outside any transaction, and stores
its parts in short ones, which lock the bundle's row and check the lease. A killed build begins
anew. Builds from the same source have the same bytes.
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
_room = BoundedSemaphore(LARGE_AT_ONCE)

_log = structlog.get_logger(__name__)

_A_MOMENT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
_WAITING = "waiting"


class _NoRoom(Exception):
    """Other builds of large bundles run: this one comes back later."""


class _Gone(Exception):
    """The bundle has expired, or another worker has taken over the job."""


@dataclass(frozen=True)
class _Built:
    """A pack whose parts are stored: its id, and the digest and size of the whole."""

    id: UUID
    sha256: bytes
    size: int


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
        build = _Build(self.database, self.settings, job, record.id, chosen.source, evidence)
        return Errand(build.talk, build.record)


@dataclass(frozen=True)
class _Build:
    """One build of a pack: its errand, and what it leaves."""

    database: Database
    settings: Settings
    job: Job
    record_id: UUID
    source: Source
    evidence: Evidence

    @property
    def tenant_id(self) -> UUID:
        """The tenant of the job."""
        return self.job.tenant_id

    def talk(self) -> _Built | Step:
        """Write the pack and store its parts, each in a transaction of its own.

        Returns the step that ends the build where there is none.
        """
        try:
            with _room_for(len(self.evidence.bundle)):
                return self._store(pack.write(self.evidence))
        except _NoRoom:
            return Step("room", progress(self.record_id, "waiting for room"), _A_MOMENT)
        except _Gone:
            return _expired(self.record_id)

    def record(self, session: Session, built: _Built | Step) -> Step:
        """Let the pack be given out, if its bundle is still kept."""
        if isinstance(built, Step):
            return built
        kept = bundles.hold(session, self.tenant_id, self.record_id)
        # Locked before the packs, as for each part: or two who build might wait for each other.
        if not leases.renew(session, self.job):
            return _expired(self.record_id)
        if not kept:
            store.discard(session, self.tenant_id, built.id)
            return _expired(self.record_id)
        store.finish(session, self._place(built.id), built.sha256, built.size)
        return Step(None, progress(self.record_id, "built", built.size, total=built.size))

    def _store(self, archive: pack.Archive) -> _Built:
        keys, total = self.settings.master_keys, archive.size
        with self._held(0, total) as session:
            pack_id = store.begin(session, self.tenant_id, self.record_id, self.source)
        digest, size = sha256(), 0
        for number, part in enumerate(in_parts(archive, store.PART_BYTES)):
            digest.update(part)
            size += len(part)
            with self._held(size, total) as session:
                store.add_part(session, keys, self._place(pack_id), number, part)
        return _Built(pack_id, digest.digest(), size)

    @contextmanager
    def _held(self, size: int, total: int) -> Iterator[Session]:
        """Open a transaction in which the bundle stays and the job is ours; else end the build."""
        with self.database.transaction(self.tenant_id) as session:
            if not bundles.hold(session, self.tenant_id, self.record_id):
                raise _Gone
            shown = progress(self.record_id, "building", size, total=total)
            if not leases.renew(session, self.job, shown):
                raise _Gone
            yield session

    def _place(self, pack_id: UUID) -> tuple[UUID, UUID, UUID]:
        return self.tenant_id, self.record_id, pack_id


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
def _room_for(size: int) -> Iterator[None]:
    """Hold room for a large bundle; a build that finds none comes back later."""
    if size <= LARGE:
        yield
        return
    if not _room.acquire(blocking=False):
        raise _NoRoom
    try:
        yield
    finally:
        _room.release()


def _expired(record_id: UUID) -> Step:
    # Nothing is written for a job that another worker has taken over, so this result is not either.
    return Step(None, progress(record_id, "the bundle has expired"))


def _wait(job: Job, record_id: UUID) -> Step:
    """Come back when the log may have the leaf: soon at first, then less and less often."""
    name, _, count = (job.cursor or "").partition(":")
    times = int(count) if name == _WAITING else 0
    wait = min(_A_MOMENT * 2 ** min(max(times - 2, 0), 10), _LONGEST_WAIT)
    return Step(f"{_WAITING}:{times + 1}", progress(record_id, "waiting for the log"), wait)
