"""What packs are of: a record with its findings and place in its session, or a sealed session.

A session's pack matches the sealed digests with the rows that are there now, so that what is
missing or was added is named. One whose bundles are no longer those that are kept cannot be read,
and is made anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from threading import BoundedSemaphore
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import agents, findings, signing_keys
from app.core.blobs import store as blob_store
from app.core.blobs.reading import fetching
from app.core.jobs import job_rows
from app.core.log import proofs
from app.core.log.publication import Published
from app.core.packs import store
from app.core.packs.building import Choice, Gone, Subject, bulkhead, proven
from app.core.packs.store import About
from app.core.records import bundles, records, retention, statements
from app.database import Database, cursor
from app.errors import LogPending
from app.evidence import pack, statement
from app.evidence.pack import Archive, Evidence, SessionEvidence, findings_file
from app.evidence.statement import Status, record_line
from app.lib import canonical_json
from app.models import Finding, Job, Record, SessionStatement
from app.settings import Settings

RECORD, SESSION = "evidence_pack", "session_pack"
"""Kinds of jobs."""

MOST_FINDINGS = 8 * 2**20

# A large bundle takes a hundred times the memory of a small one while it is read: few at once.
LARGE = 1024 * 1024
_large = BoundedSemaphore(2)


class RecordSubject(Subject):
    """A record, of which there is a pack as long as its bundle is kept."""

    job_kind = RECORD

    def __init__(self, session: Session, record: Record) -> None:
        self.record = record
        self.about = About(record.tenant_id, "record", record.id)
        self.key_id, self.signature = record.key_id, record.signature
        self.signed_at = record.created_at
        named = (record.tenant_id, record.agent_id, record.created_at)
        self.agent_name = agents.name_at(session, *named)

    def require_kept(self, session: Session) -> None:
        """Raise `BundleExpired` when its bundle is due or deleted."""
        bundles.require_kept(session, self.record)

    def state(self, session: Session) -> str:
        """Name its findings, and the statement of its session."""
        found = findings.state_of_record(session, self.record.tenant_id, self.record.id)
        sealed = statements.find(session, self.record.tenant_id, self.record.session_id)
        states = (found, "" if sealed is None else sealed.sha256.hex())
        return "/" + sha256(b"".join(sha256(each.encode()).digest() for each in states)).hexdigest()

    def index(self, session: Session, last: Published) -> int:
        """Return the place of its leaf. Raises `LogPending`, `LogDamaged`."""
        return proofs.index_of_record(session, last, records.leaf_hash(self.record.bundle_sha256))

    @contextmanager
    def archive(self, database: Database, settings: Settings, chosen: Choice) -> Iterator[Archive]:
        """Open the archive: all but its PROV is in memory then."""
        tenant_id, record_id = self.record.tenant_id, self.record.id

        def gather() -> Evidence:
            with database.transaction(tenant_id) as session:
                raw = bundles.read(session, settings.master_keys, tenant_id, record_id)
                if raw is None:
                    raise Gone
                return Evidence(
                    bundle=raw,
                    agent_name=self.agent_name,
                    further=_further(session, self.record),
                    **proven(session, settings, self, chosen),
                )

        # Its bundle may lie in the object store, which no transaction waits for.
        evidence = fetching(blob_store.of(settings.blob_url), gather)
        size = len(evidence.bundle) + sum(map(len, evidence.further.values()))
        with bulkhead(_large) if size > LARGE else nullcontext():
            yield pack.write(evidence)

    def hold(self, session: Session) -> None:
        """Lock its bundle against deletion. Raises `Gone`."""
        if not bundles.hold(session, self.record.tenant_id, self.record.id):
            raise Gone


def _further(session: Session, record: Record) -> Mapping[str, bytes]:
    """Return the further files of a pack (`pack.FURTHER`), by name."""
    found = findings.of_record(session, record.tenant_id, record.id, MOST_FINDINGS)
    files = {"findings.json": findings_file(ids.text("rec", record.id), *found)}
    place = statements.place_of(session, record)
    if place is not None:
        stored = place.statement
        files |= {
            "session-proof.json": statement.proof(place.index, place.size, place.path),
            "session-statement.json": stored.body,
            "session-statement.sig": stored.signature,
        }
        if stored.key_id != record.key_id:
            files["session-key.pem"] = signing_keys.public_key(session, stored.key_id).pem
    return files


# A build reads in one transaction and writes in another: builds that each waited for their second
# connection would hold all that a process has.
_one = BoundedSemaphore(1)

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


class SessionSubject(Subject):
    """A sealed session; what is signed is its statement."""

    job_kind = SESSION

    def __init__(self, stored: SessionStatement) -> None:
        self.stored = stored
        self.about = About(stored.tenant_id, "session", stored.session_id)
        self.key_id, self.signature = stored.key_id, stored.signature
        said: Any = canonical_json.parse(stored.body)
        self.signed_at = datetime.fromisoformat(said["session"]["completed_at"])

    def require_kept(self, session: Session) -> None:
        """Do nothing: a statement has no content, and stays."""

    def state(self, session: Session) -> str:
        """Name what goes into it besides: bundles that are kept, and how many rows and findings."""
        tenant_id, session_id = self.stored.tenant_id, self.stored.session_id
        named = {"tenant": tenant_id, "session": session_id}
        ((rows, found),) = cursor(session).execute(_STATE, named).fetchall()
        return f"{bundles.kept_of(session, tenant_id, session_id)}/{rows}/{found}"

    def index(self, session: Session, last: Published) -> int:
        """Return the place of its statement's leaf. Raises `LogPending`, `NotFound`."""
        return proofs.index_of(session, last, statements.leaf_hash(self.stored))

    @contextmanager
    def archive(self, database: Database, settings: Settings, chosen: Choice) -> Iterator[Archive]:
        """Open the archive, which is read as it is written.

        A snapshot stands for as long as that takes: it waits for the object store in it.
        """
        stored = self.stored
        named = (stored.tenant_id, stored.session_id)
        with bulkhead(_one), database.transaction(stored.tenant_id, snapshot=True) as reading:
            content = _Content(reading, settings, stored)
            key_ids = sorted(row[0] for row in cursor(reading).execute(_KEYS, named).fetchall())
            yield pack.write_session(
                SessionEvidence(
                    statement=stored.body,
                    keys=[signing_keys.public_key(reading, each) for each in key_ids],
                    digests=content.digests,
                    records=content.records,
                    bundles=content.bundles,
                    findings=content.findings,
                    **proven(reading, settings, self, chosen),
                )
            )

    def hold(self, session: Session) -> None:
        """Do nothing: a bundle that goes cannot be read from the pack."""


def find(session: Session, tenant_id: UUID, job: Job) -> Subject | None:
    """Return what the pack of a job is of, if it is there."""
    args = job_rows.args_of(job)
    if job.kind == RECORD:
        record = session.get(Record, (tenant_id, ids.read("rec", args["record_id"])))
        return None if record is None else RecordSubject(session, record)
    stored = statements.find(session, tenant_id, ids.read("ses", args["session_id"]))
    return None if stored is None else SessionSubject(stored)


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
                    yield store.lines(found.contents, opened)

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
            found = _Part([part[at : at + 32] for at in range(0, len(part), 32)], {}, [])
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


def _batches(rows: Iterable[_Row]) -> Iterator[list[UUID]]:
    """Cut rows into batches whose bundles come to about a part, or are one."""
    batch: list[UUID] = []
    size = 0
    for row in rows:
        if batch and size + row.size > store.PART_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row.id)
        size += row.size + 1
    if batch:
        yield batch
