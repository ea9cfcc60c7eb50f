"""The pack of a record: its bundle, its findings, and its place in its session once that is sealed.

Findings and statement may change after the record: a pack is made anew when they have.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from threading import BoundedSemaphore
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import agents, findings, signing_keys
from app.core.blobs import store
from app.core.blobs.reading import fetching
from app.core.jobs import job_rows
from app.core.log import proofs
from app.core.log.publication import Published
from app.core.packs.building import Choice, Gone, Subject, bulkhead, proven
from app.core.packs.store import About
from app.core.records import bundles, records
from app.core.statements import statements
from app.database import Database
from app.evidence import pack, statement
from app.evidence.pack import Archive, Evidence, findings_file
from app.models import Job, Record
from app.settings import Settings

KIND = "evidence_pack"
MOST_FINDINGS = 8 * 2**20

# A large bundle takes a hundred times the memory of a small one while it is read: few at once.
LARGE = 1024 * 1024
_large = BoundedSemaphore(2)


class RecordSubject(Subject):
    """A record, of which there is a pack as long as its bundle is kept."""

    job_kind = KIND

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
        evidence = fetching(store.of(settings.blob_url), gather)
        size = len(evidence.bundle) + sum(map(len, evidence.further.values()))
        with bulkhead(_large) if size > LARGE else nullcontext():
            yield pack.write(evidence)

    def hold(self, session: Session) -> None:
        """Lock its bundle against deletion. Raises `Gone`."""
        if not bundles.hold(session, self.record.tenant_id, self.record.id):
            raise Gone


def find(session: Session, tenant_id: UUID, job: Job) -> Subject | None:
    """Return the record of a job."""
    record_id = ids.parse("rec", job_rows.args_of(job)["record_id"])
    record = session.get(Record, (tenant_id, record_id))
    return None if record is None else RecordSubject(session, record)


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
