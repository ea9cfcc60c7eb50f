"""Packs of whole sessions: built by a durable job, one at a time for a session.

A build matches the sealed digests with the rows that are there now, so that what is missing or was
added is named; it holds no bundle longer than it writes it. A pack whose bundles are no longer
those that are kept cannot be read, and is made anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import BoundedSemaphore
from typing import Any, NamedTuple
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import findings, signing_keys
from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.log import proofs
from app.core.packs import building, pack_requests, session_store
from app.core.packs.building import Choice
from app.core.packs.pack_requests import PackState
from app.core.packs.session_store import Lines
from app.core.packs.store import PART_BYTES, SessionPack
from app.core.records import bundles, records, retention
from app.core.statements import statements
from app.database import Database, cursor
from app.errors import LogDamaged, LogPending, NotFound
from app.evidence import pack
from app.evidence.pack import SessionEvidence
from app.evidence.pack import archive as archives
from app.evidence.statement import Status, record_line
from app.lib import canonical_json
from app.lib.crypto.sealing import KeyMissing
from app.models import Finding, Job, SessionStatement
from app.settings import Settings

KIND = "session_pack"

_A_MOMENT = timedelta(seconds=1)
# A build reads in one transaction and writes in another: builds that each waited for their second
# connection would hold all that a process has.
_turn = BoundedSemaphore(1)

_log = structlog.get_logger(__name__)

_ROWS = """
SELECT id, bundle_sha256, bundle_size, key_id, signature, created_at FROM records
 WHERE tenant_id = %s AND session_id = %s AND id >= %s AND (%s::uuid IS NULL OR id < %s)
 ORDER BY id
"""
_STATE = """
SELECT (SELECT count(*) FROM records WHERE tenant_id = %(tenant)s AND session_id = %(session)s),
       (SELECT count(*) FROM findings WHERE tenant_id = %(tenant)s AND session_id = %(session)s)
"""
_KEYS = "SELECT DISTINCT key_id FROM records WHERE tenant_id = %s AND session_id = %s"


def ask(
    session: Session, settings: Settings, stored: SessionStatement, *, any_pack: bool = False
) -> PackState[SessionPack]:
    """Return what there is of the session's pack; a better one is begun if one can be made.

    With `any_pack` only where there is none at all. Raises `LogDamaged` where the log is, and there
    is no pack.
    """
    found = session_store.find(session, stored)
    state = _state(session, stored)
    if found is not None and _kept(found.source.further) != _kept(state):
        # It has a bundle that has expired since.
        found = None
    named = ids.text("ses", stored.session_id)
    try:
        wanted = choose(session, settings, stored, state)
        if found and building.is_current(session, settings, found.source, wanted.source):
            return PackState(found, is_current=True, job=None)
    except (LogPending, NotFound):
        if found is not None:
            return PackState(found, is_current=True, job=None)
    except LogDamaged:
        if found is None:
            raise
        return PackState(found, is_current=True, job=None)
    if found and signing_keys.revoked_at(session, found.source.key_id) is not None:
        found = None
    job = pack_requests.job_for(session, stored.tenant_id, KIND, named)
    if job is None and not (any_pack and found):
        job = job_queue.enqueue(
            session,
            stored.tenant_id,
            kind=KIND,
            args={"session_id": named},
            dedupe_key=named,
            progress=progress(stored.session_id, "queued"),
        )
    return PackState(found, is_current=False, job=job)


def progress(session_id: UUID, phase: str, stored: int = 0, **more: int) -> Mapping[str, Any]:
    """Return what is shown of a job: the session, the phase, and the bytes of the pack so far."""
    return {"session_id": ids.text("ses", session_id), "phase": phase, "bytes": stored, **more}


def choose(session: Session, settings: Settings, stored: SessionStatement, state: str) -> Choice:
    """Return what a pack of the session would be made from now.

    Raises `LogPending`, `NotFound` where the log has no leaf of the statement, and `LogDamaged`.
    """
    last = proofs.newest(session)
    index = proofs.index_of(session, last, statements.leaf_hash(stored))
    said: Any = canonical_json.parse(stored.body)
    completed_at = datetime.fromisoformat(said["session"]["completed_at"])
    return building.choose_for(
        session, settings, last, index, stored.key_id, "", state, completed_at
    )


def _state(session: Session, stored: SessionStatement) -> str:
    """Name what goes into a pack besides the statement: bundles that are kept, rows, findings."""
    named = {"tenant": stored.tenant_id, "session": stored.session_id}
    kept = bundles.kept_of(session, stored.tenant_id, stored.session_id)
    ((rows, found),) = cursor(session).execute(_STATE, named).fetchall()
    return f"{kept}/{rows}/{found}"


def _kept(state: str) -> str:
    return state.partition("/")[0]


@dataclass
class _Content:
    """The large files of a session's pack, each read anew when it is asked for.

    `reading` sees one moment. Sealed digests and rows are matched a part at a time: a part of the
    digests begins at a record, and so do the rows that belong to it.
    """

    reading: Session
    settings: Settings
    stored: SessionStatement
    damaged: set[UUID] = field(default_factory=set)

    def digests(self) -> Iterator[bytes]:
        """Yield `session-digests.txt`."""
        for part in statements.digests(self.reading, self.stored):
            yield b"".join(
                part[at : at + 32].hex().encode() + b"\n" for at in range(0, len(part), 32)
            )

    def records(self) -> Iterator[bytes]:
        """Yield `records.ndjson`; raises `LogPending` where a leaf waits for its place."""
        due = retention.due_before(self.reading, self.stored.tenant_id)
        unsealed: list[bytes] = []
        for part in self._parts():
            leaves = self._leaves(part)
            kept = self._kept(part)
            lines = []
            for digest in part.digests:
                row = part.rows.get(digest)
                if row is None:
                    lines.append(record_line(Status.MISSING, digest))
                    continue
                over = due is not None and row.created_at <= due
                gone = Status.EXPIRED if over else Status.MISSING
                status = Status.PRESENT if row.id in kept else gone
                lines.append(record_line(status, digest, *row.named, leaves.get(row.leaf_hash)))
            yield b"".join(lines)
            unsealed += (
                record_line(Status.UNSEALED, row.digest, *row.named, leaves.get(row.leaf_hash))
                for row in part.others
            )
        yield b"".join(unsealed)

    def bundles(self) -> Iterator[bytes]:
        """Yield `bundles.ndjson`, in `Lines`; notes which bundles do not open."""
        master_keys, tenant_id = self.settings.master_keys, self.stored.tenant_id
        for part in self._parts():
            kept = self._kept(part)
            here = [part.rows[each] for each in part.digests if each in part.rows]
            for batch in _batches(row for row in here if row.id in kept):
                found = bundles.read_many(self.reading, master_keys, tenant_id, batch)
                self.damaged.update(found.damaged)
                opened = [each for each in batch if each in found.contents]
                if opened:
                    lines = Lines(session_store.lines(found.contents, opened))
                    lines.record_ids = opened
                    yield lines

    def findings(self) -> Iterator[bytes]:
        """Yield `findings.ndjson`."""
        wanted = (
            select(Finding)
            .where(
                Finding.tenant_id == self.stored.tenant_id,
                Finding.session_id == self.stored.session_id,
            )
            .order_by(Finding.id)
            .execution_options(yield_per=100)
        )
        for some in self.reading.scalars(wanted).partitions():
            yield b"".join(canonical_json.dumps(findings.represent(each)) + b"\n" for each in some)

    def _parts(self) -> Iterator["_Part"]:
        """Yield the sealed digests, a part at a time, with the rows that are there now."""
        firsts = statements.first_ids(self.reading, self.stored)
        bounds = [UUID(int=0), *firsts[1:], None]
        parts = statements.digests(self.reading, self.stored) if firsts else iter([b""])
        for part, start, stop in zip(parts, bounds, bounds[1:], strict=False):
            wanted = (self.stored.tenant_id, self.stored.session_id, start, stop, stop)
            found = _Part(_cut(part), {}, [])
            sealed = set(found.digests)
            for row in cursor(self.reading).execute(_ROWS, wanted, binary=True).fetchall():
                each = _Row(*row)
                if each.digest in sealed and each.digest not in found.rows:
                    found.rows[each.digest] = each
                else:
                    found.others.append(each)
            yield found

    def _kept(self, part: "_Part") -> set[UUID]:
        wanted = [row.id for row in part.rows.values()]
        return bundles.kept(self.reading, self.stored.tenant_id, wanted) - self.damaged

    def _leaves(self, part: "_Part") -> dict[bytes, int]:
        """Return the places of the rows' leaves in the log, of those that have one."""
        wanted = [row.leaf_hash for row in [*part.rows.values(), *part.others]]
        found = proofs.leaves(self.reading, proofs.newest(self.reading), wanted)
        if None in found.values():
            raise LogPending("A record of the session waits for its place in the log.")
        return {each: leaf.index for each, leaf in found.items() if leaf is not None}


class _TakenOver(Exception):
    """Another worker has this job."""


class _Row(NamedTuple):
    """A record's row."""

    id: UUID
    digest: bytes
    size: int
    key_id: str
    signature: bytes
    created_at: datetime

    @property
    def named(self) -> tuple[str, str, bytes]:
        return ids.text("rec", self.id), self.key_id, self.signature

    @property
    def leaf_hash(self) -> bytes:
        return records.leaf_hash(self.digest)


class _Part(NamedTuple):
    """Sealed digests in order, the rows that they are of, and rows that are of none."""

    digests: list[bytes]
    rows: dict[bytes, _Row]
    others: list[_Row]


def _cut(digests: bytes) -> list[bytes]:
    return [digests[at : at + 32] for at in range(0, len(digests), 32)]


def _batches(rows: Iterable[_Row]) -> Iterator[list[UUID]]:
    """Cut rows into batches whose bundles come to about a part, or are one."""
    batch: list[UUID] = []
    size = 0
    for row in rows:
        if batch and size + row.size > PART_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row.id)
        size += row.size + 1
    if batch:
        yield batch


@dataclass(frozen=True)
class SessionBuilder:
    """Builds packs of sessions for one worker process."""

    database: Database
    settings: Settings

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Any]:
        """Begin a pack, wait for the log, or find that nothing is to be done."""
        session_id = ids.read("ses", job_rows.args_of(job)["session_id"])
        stored = statements.find(session, tenant_id, session_id)
        if stored is None:
            raise JobFailed("There is no statement of this session.")
        try:
            chosen = choose(session, self.settings, stored, _state(session, stored))
        except LogPending:
            return building.wait_for_log(job, progress(session_id, "waiting for the log"))
        except NotFound:
            raise JobFailed("The log has no leaf for this session's statement.") from None
        have = session_store.find(session, stored)
        if have and building.is_current(session, self.settings, have.source, chosen.source):
            return Step(None, progress(session_id, "built", have.size, total=have.size))
        return Errand(lambda: self._in_turn(job, stored, chosen), lambda _, step: step)

    def _in_turn(self, job: Job, stored: SessionStatement, chosen: Choice) -> Step:
        """Build the pack, or come back where this process builds another one."""
        if not _turn.acquire(blocking=False):
            return Step("room", progress(stored.session_id, "waiting for others"), _A_MOMENT)
        try:
            return self._build(job, stored, chosen)
        finally:
            _turn.release()

    def _build(self, job: Job, stored: SessionStatement, chosen: Choice) -> Step:
        """Write the pack and store it; return the step that ends the job, or comes back."""
        tenant_id, session_id = stored.tenant_id, stored.session_id
        try:
            # A snapshot stands for as long as a build takes: it waits for the object store in it.
            with self.database.transaction(tenant_id, snapshot=True) as reading:
                archive = pack.write_session(_evidence(reading, self.settings, stored, chosen))
                with self.database.transaction(tenant_id) as session:
                    session_store.replace(session, self.settings, stored, chosen.source, archive)
                    if not leases.renew(session, job):
                        raise _TakenOver
        except LogPending:
            return building.wait_for_log(job, progress(session_id, "waiting for the log"))
        except _TakenOver:
            # Nothing is written for a job that another worker has, so this result is not either.
            return Step(None, progress(session_id, "taken over"))
        except archives.Unrepeatable:
            # A bundle came due between the two times that it was read.
            return Step("again", progress(session_id, "a bundle has expired"), _A_MOMENT)
        except KeyMissing as error:
            named = ids.text("ses", session_id)
            _log.error("pack_without_key", session=named, reason=str(error))
            raise JobFailed(building.NO_KEY) from None
        except archives.TooLarge:
            raise JobFailed(
                "The session's bundles come to more than the 4 GiB that a ZIP can hold: take the"
                " packs of its records, and its statement."
            ) from None
        return Step(None, progress(session_id, "built", archive.size, total=archive.size))


def _evidence(
    reading: Session, settings: Settings, stored: SessionStatement, chosen: Choice
) -> SessionEvidence:
    content = _Content(reading, settings, stored)
    named = (stored.tenant_id, stored.session_id)
    key_ids = sorted(row[0] for row in cursor(reading).execute(_KEYS, named).fetchall())
    return SessionEvidence(
        statement=stored.body,
        keys=[signing_keys.public_key(reading, each) for each in key_ids],
        digests=content.digests,
        records=content.records,
        bundles=content.bundles,
        findings=content.findings,
        **building.proven(reading, settings, chosen, stored.key_id, stored.signature),
    )
