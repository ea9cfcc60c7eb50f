"""The durable job that builds a pack; one at a time for a record or a session.

A step chooses evidence; its errand reads what the pack is of, writes and stores it. A killed build
leaves nothing; the same source gives the same bytes. A pack is replaced after better evidence, a
change of what it is made of or its key, another release, other trust.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import BoundedSemaphore
from typing import Any, ClassVar
from uuid import UUID

import structlog
from cryptography.hazmat.primitives.hashes import SHA256
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import signing_keys
from app.core.anchoring import evidence as anchoring
from app.core.jobs import job_queue, leases
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.log import proofs, publication
from app.core.log.publication import Published
from app.core.packs import store
from app.core.packs.store import About, Source
from app.core.signing_keys import Purpose
from app.database import Database
from app.errors import LogPending, NotFound
from app.evidence import pack
from app.evidence.pack import Archive
from app.evidence.pack import archive as archives
from app.evidence.signing_certificates import SigningChain
from app.ledger.notes import Signature
from app.ledger.policy import Policy
from app.lib.crypto.sealing import KeyMissing
from app.models import Job
from app.settings import VERSION, Settings

NO_KEY = (
    "MASTER_KEYS lacks the key that sealed a bundle of this pack, or the one that sealed what signs"
    " packs. The operator has to put it back; then this job can be retried."
)

_log = structlog.get_logger(__name__)

_A_MOMENT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
_WAITING = "waiting"


class _Full(Exception):
    """Other builds hold the bulkhead: this one comes back later."""


class Gone(Exception):
    """The bundle has expired, or another worker has taken over the job."""


@contextmanager
def bulkhead(permits: BoundedSemaphore) -> Iterator[None]:
    """Bulkhead between builds of a process: one that finds it full comes back later."""
    if not permits.acquire(blocking=False):
        raise _Full
    try:
        yield
    finally:
        permits.release()


@dataclass(frozen=True)
class Choice:
    """The inputs of a pack made now: the leaf's place, and the evidence for it.

    `chain` are the certificates of the key that signed, if they were valid at that time and when
    others saw it.
    """

    index: int
    anchor: anchoring.Evidence
    chain: SigningChain | None
    source: Source


class Subject(ABC):
    """What a pack is of. It was signed by `key_id`, at that moment.

    `agent_name` is the name that the agent had then, unless what was signed has it.
    """

    job_kind: ClassVar[str]
    about: About
    key_id: str
    signature: bytes
    signed_at: datetime
    agent_name: str = ""

    @abstractmethod
    def require_kept(self, session: Session) -> None:
        """Raise `BundleExpired` when there can be no pack any more."""

    @abstractmethod
    def state(self, session: Session) -> str:
        """Name the state of what may change (`Source.further`), without opening what is sealed."""

    @abstractmethod
    def index(self, session: Session, last: Published) -> int:
        """Return the place of its leaf. Raises `LogPending`, and `NotFound` without one."""

    @abstractmethod
    def archive(
        self, database: Database, settings: Settings, chosen: Choice
    ) -> AbstractContextManager[Archive]:
        """Open the archive to store. Raises `Gone`, `LogPending` and `CannotOpen`."""

    @abstractmethod
    def hold(self, session: Session) -> None:
        """Keep what the pack is made of until the commit. Raises `Gone`."""

    def progress(self, phase: str, stored: int = 0, **more: int) -> Mapping[str, Any]:
        """Return what is shown of a job: of what it is, the phase, and the bytes stored so far."""
        return {f"{self.about.kind}_id": self.about.text, "phase": phase, "bytes": stored, **more}


def order(session: Session, subject: Subject) -> Job:
    """Have a pack built; return the job that is at it already, if there is one."""
    return job_queue.enqueue(
        session,
        subject.about.tenant_id,
        kind=subject.job_kind,
        args={f"{subject.about.kind}_id": subject.about.text},
        dedupe_key=subject.about.text,
        progress=subject.progress("queued"),
    )


@dataclass(frozen=True)
class Builder:
    """Builds packs for one worker process; `find` returns what a job's pack is of, if it is."""

    database: Database
    settings: Settings
    find: Callable[[Session, UUID, Job], Subject | None]

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Any]:
        """Begin a pack, wait for the log, or find that nothing is to be done."""
        subject = self.find(session, tenant_id, job)
        if subject is None:
            raise JobFailed("What it is of is not there.")
        try:
            chosen = choose(session, self.settings, subject, subject.state(session))
        except LogPending:
            return _wait_for_log(job, subject)
        except NotFound:
            raise JobFailed("The log has no leaf for it.") from None
        stored = store.find(session, subject.about)
        if stored and is_current(session, self.settings, stored.source, chosen.source):
            return Step(None, subject.progress("built", stored.size, total=stored.size))
        return Errand(lambda: self._build(job, subject, chosen), lambda _, step: step)

    def _build(self, job: Job, subject: Subject, chosen: Choice) -> Step:
        """Write the pack and store it; return the step that ends the job, or comes back."""
        tenant_id = subject.about.tenant_id
        try:
            with subject.archive(self.database, self.settings, chosen) as archive:
                writer = store.Writer(self.settings, subject.about, chosen.source, archive.size)
                parts = writer.parts(archive)
                with self.database.transaction(tenant_id) as session:
                    subject.hold(session)
                    writer.replace(session, parts)
                    # Once more: it may be due by now, or another worker have taken over.
                    subject.hold(session)
                    if not leases.renew(session, job):
                        raise Gone
        except LogPending:
            return _wait_for_log(job, subject)
        except _Full:
            return Step("room", subject.progress("waiting for others"), _A_MOMENT)
        except Gone:
            # Nothing is written for a job that another worker has, so this result is not either.
            return Step(None, subject.progress("the bundle has expired"))
        except archives.Unrepeatable:
            # A bundle came due between the two times that it was read.
            return Step("again", subject.progress("a bundle has expired"), _A_MOMENT)
        except KeyMissing as error:
            _log.error("pack_without_key", of=subject.about.text, reason=str(error))
            raise JobFailed(NO_KEY) from None
        except archives.TooLarge:
            raise JobFailed(
                "The session's bundles come to more than the 4 GiB that a ZIP can hold: take the"
                " packs of its records, and its statement."
            ) from None
        return Step(None, subject.progress("built", archive.size, total=archive.size))


def _wait_for_log(job: Job, subject: Subject) -> Step:
    """Come back when the log may have the leaf: soon at first, then less and less often."""
    name, _, count = (job.cursor or "").partition(":")
    times = int(count) if name == _WAITING else 0
    wait = min(_A_MOMENT * 2 ** min(max(times - 2, 0), 10), _LONGEST_WAIT)
    return Step(f"{_WAITING}:{times + 1}", subject.progress("waiting for the log"), wait)


def choose(session: Session, settings: Settings, subject: Subject, state: str) -> Choice:
    """Return what a pack would be made from now; nothing sealed is opened for it.

    Raises `LogPending` while no published checkpoint covers its leaf, `NotFound`, `LogDamaged`.
    """
    last = publication.current(session)
    if last is None:
        raise LogPending("The log has published nothing yet.")
    index = subject.index(session, last)
    # Of what a revoked key signed counts what others had seen by then.
    revoked_at = signing_keys.revoked_at(session, subject.key_id)
    others = (settings.witness_policy, settings.tsa_ca_file)
    found = anchoring.Chooser(session, last, *others).best(index, by=revoked_at)
    chain = settings.signing_chain(subject.key_id, subject.signed_at, *_seen(found))
    source = Source(
        found.published.generation.number,
        found.published.checkpoint.size,
        found.rank,
        signing_keys.current_id(session, settings.master_keys, Purpose.BUNDLE),
        _recipe(settings, subject.agent_name, revoked_at, chain),
        state,
    )
    return Choice(index, found, chain, source)


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


def _recipe(
    settings: Settings, agent_name: str, revoked_at: datetime | None, chain: SigningChain | None
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


def prove(session: Session, chosen: Choice) -> Sequence[bytes]:
    """Return the path from the leaf to the chosen checkpoint's root. Raises `LogDamaged`."""
    published = chosen.anchor.published
    return proofs.inclusion(session, published, chosen.index, published.checkpoint.size).path


def proven(
    session: Session, settings: Settings, subject: Subject, chosen: Choice
) -> dict[str, Any]:
    """Return the members of `pack.Proven`.

    Raises `app.lib.crypto.sealing.CannotOpen` when the key that signs packs does not open.
    """
    published = chosen.anchor.published
    return {
        "signature": subject.signature,
        "public_key": signing_keys.public_key(session, subject.key_id),
        "pack_key": signing_keys.opened(session, settings.master_keys, chosen.source.key_id),
        "base_url": settings.base_url,
        "release": VERSION,
        "log_key": published.generation.verifier_key,
        "checkpoint": published.note,
        "leaf_index": chosen.index,
        "path": prove(session, chosen),
        "cosignatures": tuple(Signature.parse(line) for line in chosen.anchor.cosignatures),
        "timestamp": chosen.anchor.timestamp,
        "chain": chosen.chain,
    }
