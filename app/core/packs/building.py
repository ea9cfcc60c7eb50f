"""The durable job that builds a record's pack; one at a time for a record.

A step chooses evidence and reads the bundle; its errand writes and stores the pack in one
transaction. A killed build leaves nothing; the same source gives the same bytes. A pack is replaced
after better evidence, a change of its further files or its key, another release, other trust.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from cryptography.hazmat.primitives.hashes import SHA256
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import agents, signing_keys
from app.core.anchoring import evidence as anchoring
from app.core.blobs import store as blob_store
from app.core.blobs.writing import Stowed, stow
from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.log import proofs, publication
from app.core.log.publication import Published
from app.core.packs import further_files, store
from app.core.packs.store import Source
from app.core.records import bundles, records
from app.core.signing_keys import Purpose
from app.database import Database
from app.errors import LogPending, NotFound
from app.evidence import pack
from app.evidence.pack import Evidence
from app.ledger.notes import Signature
from app.ledger.policy import Policy
from app.lib.crypto.sealing import KeyMissing
from app.lib.crypto.signing_certificates import SigningChain
from app.models import Job, Record
from app.settings import VERSION, Settings

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

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
            chosen = choose(session, self.settings, record)
        except LogPending:
            return wait_for_log(job, progress(record.id, "waiting for the log"))
        except NotFound:
            raise JobFailed("The log has no leaf for this record.") from None
        stored = store.find(session, tenant_id, record.id)
        if stored is not None and is_current(session, self.settings, stored.source, chosen.source):
            return Step(None, progress(record.id, "built", stored.size, total=stored.size))
        try:
            evidence = evidence_of(session, self.settings, record, chosen)
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
        place = (tenant_id, record_id, ids.new())
        try:
            with _bulkhead_for(len(evidence.bundle) + sum(map(len, evidence.further.values()))):
                archive = pack.write(evidence)
                digest = sha256()
                parts = self._parts(place, archive, digest)
                if self.settings.blob_url is not None:
                    # All are in the object store before the transaction begins.
                    parts = iter(list(parts))
                with self.database.transaction(tenant_id) as session:
                    if not bundles.hold(session, tenant_id, record_id):
                        raise _Gone
                    store.begin(session, place, source, archive.size)
                    for number, part in enumerate(parts):
                        store.add_part(session, place, number, part)
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

    def _parts(
        self, place: store.Place, archive: Iterable[bytes], digest: "Hash"
    ) -> Iterator[Stowed]:
        """Seal the parts of a pack, one at a time, and say where each lies."""
        blobs = blob_store.of(self.settings.blob_url)
        for number, part in enumerate(in_parts(archive, store.PART_BYTES)):
            digest.update(part)
            yield from stow(blobs, [store.item(self.settings.master_keys, place, number, part)])


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


def wait_for_log(job: Job, shown: Mapping[str, Any]) -> Step:
    """Come back when the log may have the leaf: soon at first, then less and less often."""
    name, _, count = (job.cursor or "").partition(":")
    times = int(count) if name == _WAITING else 0
    wait = min(_A_MOMENT * 2 ** min(max(times - 2, 0), 10), _LONGEST_WAIT)
    return Step(f"{_WAITING}:{times + 1}", shown, wait)


@dataclass(frozen=True)
class Choice:
    """The inputs of a pack made now: the agent's name, the leaf's place, the evidence for it.

    `chain` are the certificates of the bundle's key, if they were valid when the record was made
    and when others saw it.
    """

    agent_name: str
    index: int
    anchor: anchoring.Evidence
    chain: SigningChain | None
    source: Source


def choose(session: Session, settings: Settings, record: Record) -> Choice:
    """Return what a pack of the record would be made from now; nothing sealed is opened for it.

    Raises `LogPending` while no published checkpoint covers its leaf.
    """
    last = publication.current(session)
    if last is None:
        raise LogPending("The log has published nothing yet.")
    index = proofs.index_of_record(session, last, records.leaf_hash(record.bundle_sha256))
    agent_name = agents.name_at(session, record.tenant_id, record.agent_id, record.created_at)
    further = further_files.state(session, record)
    return choose_for(
        session, settings, last, index, record.key_id, agent_name, further, record.created_at
    )


def choose_for(
    session: Session,
    settings: Settings,
    last: Published,
    index: int,
    key_id: str,
    agent_name: str,
    further: str,
    signed_at: datetime,
) -> Choice:
    """Return what a pack of this leaf, signed by `key_id` at that moment, would be made from now.

    Raises `LogPending`, and `LogDamaged`.
    """
    # Of what a revoked key signed counts what others had seen by then.
    revoked_at = signing_keys.revoked_at(session, key_id)
    others = (settings.witness_policy, settings.tsa_ca_file)
    found = anchoring.Chooser(session, last, *others).best(index, by=revoked_at)
    chain = settings.signing_chain(key_id, signed_at, *_seen(found))
    source = Source(
        found.published.generation.number,
        found.published.checkpoint.size,
        found.rank,
        signing_keys.current_id(session, settings.master_keys, Purpose.BUNDLE),
        recipe(settings, agent_name, revoked_at, chain),
        further,
    )
    return Choice(agent_name, index, found, chain, source)


def is_current(session: Session, settings: Settings, have: Source, wanted: Source) -> bool:
    """Say whether a pack is as good as one that would be made now."""
    if have.further != wanted.further:
        return False
    if have.generation != wanted.generation:
        # Of what is in it, that which still vouches for it.
        place = (have.generation, have.checkpoint_size)
        others = (settings.witness_policy, settings.tsa_ca_file)
        return have.rank & anchoring.rank_of(session, *place, *others) > wanted.rank
    made_alike = (have.key_id, have.recipe) == (wanted.key_id, wanted.recipe)
    return made_alike and have.rank >= wanted.rank


def _seen(found: anchoring.Evidence) -> list[datetime]:
    """Return when a timestamp and cosignatures say that they saw the checkpoint."""
    lines = [Signature.parse(line).payload[:8] for line in found.cosignatures]
    seen = [datetime.fromtimestamp(int.from_bytes(each, "big"), UTC) for each in lines]
    return seen if found.timestamp is None else [*seen, found.timestamp.gen_time]


def recipe(
    settings: Settings,
    agent_name: str,
    revoked_at: datetime | None = None,
    chain: SigningChain | None = None,
) -> str:
    """Name what of the service's own a pack is a function of.

    Its release, its URL and verify.py, what the agent was called when the record was made, and
    whose word counted when its rank was found: the witnesses and their quorum, the roots of
    timestamp authorities, and by when they had to have seen the log, if the bundle's key was
    revoked. Also the certificates of the bundle's key.
    """
    parts = (
        VERSION.encode(),
        settings.base_url.encode(),
        pack.verifier_source(),
        agent_name.encode(),
        _witnesses(settings.witness_policy),
        *([] if revoked_at is None else [rfc3339(revoked_at).encode()]),
        *([] if chain is None else [chain.pem]),
        *sorted(each.fingerprint(SHA256()) for each in settings.tsa_ca_file),
    )
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def _witnesses(policy: Policy | None) -> bytes:
    """Write what of a policy decides whether a quorum is met, without addresses."""
    if policy is None:
        return b""
    lines = [f"witness {each.name} {each.key}" for each in policy.witnesses]
    lines += [f"group {each.name} {each.threshold} {each.members}" for each in policy.groups]
    return "\n".join([*lines, f"quorum {policy.quorum}"]).encode("utf-8", "surrogateescape")


def evidence_of(
    session: Session, settings: Settings, record: Record, chosen: Choice
) -> Evidence | None:
    """Return all that goes into the pack; None when the bundle is due or gone.

    Raises `app.lib.crypto.sealing.CannotOpen` when the bundle or the key that signs packs does not
    open.
    """
    raw = bundles.read(session, settings.master_keys, record.tenant_id, record.id)
    if raw is None:
        return None
    return Evidence(
        bundle=raw,
        agent_name=chosen.agent_name,
        further=further_files.files(session, settings, record),
        **proven(session, settings, chosen, record.key_id, record.signature),
    )


def proven(
    session: Session, settings: Settings, chosen: Choice, key_id: str, signature: bytes
) -> dict[str, Any]:
    """Return the members of `pack.Proven`, of what `key_id` has signed.

    Raises `app.lib.crypto.sealing.CannotOpen` when the key that signs packs does not open.
    """
    published = chosen.anchor.published
    proof = proofs.inclusion(session, published, chosen.index, published.checkpoint.size)
    return {
        "signature": signature,
        "public_key": signing_keys.public_key(session, key_id),
        "pack_key": signing_keys.opened(session, settings.master_keys, chosen.source.key_id),
        "base_url": settings.base_url,
        "release": VERSION,
        "log_key": published.generation.verifier_key,
        "checkpoint": published.note,
        "leaf_index": chosen.index,
        "path": proof.path,
        "cosignatures": tuple(Signature.parse(line) for line in chosen.anchor.cosignatures),
        "timestamp": chosen.anchor.timestamp,
        "chain": chosen.chain,
    }
