"""Chooses what a record's pack is made from, and whether a stored pack is current.

A pack is replaced when better evidence exists, after a rotation of its signing key, by another
release, and when the trusted witnesses or authorities change. A pack of an ended log stays until
the successor's evidence is as good.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cryptography.hazmat.primitives.hashes import SHA256
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import agents, signing_keys
from app.core.anchoring import evidence as anchoring
from app.core.log import proofs, publication
from app.core.packs.store import Source, StoredPack
from app.core.records import bundles, records
from app.core.signing_keys import Purpose
from app.errors import LogPending
from app.evidence import pack
from app.evidence.pack import Evidence
from app.ledger.notes import Signature
from app.ledger.policy import Policy
from app.models import Record
from app.settings import VERSION, Settings


@dataclass(frozen=True)
class Choice:
    """The inputs of a pack made now: the agent's name, the leaf's place, the evidence for it."""

    agent_name: str
    index: int
    anchor: anchoring.Evidence
    source: Source


def choose(session: Session, settings: Settings, record: Record) -> Choice:
    """Return what a pack of the record would be made from now; nothing sealed is opened for it.

    Raises `LogPending` while no published checkpoint covers its leaf.
    """
    last = publication.current(session)
    if last is None:
        raise LogPending("The log has published nothing yet.")
    index = proofs.index_of_record(session, last, records.leaf_hash(record.bundle_sha256))
    # Of a record whose key was revoked counts what others had seen by then.
    revoked_at = signing_keys.revoked_at(session, record.key_id)
    agent_name = agents.name_at(session, record.tenant_id, record.agent_id, record.created_at)
    others = (settings.witness_policy, settings.tsa_ca_file)
    found = anchoring.Chooser(session, last, *others).best(index, by=revoked_at)
    source = Source(
        found.published.generation.number,
        found.published.checkpoint.size,
        found.rank,
        signing_keys.current_id(session, settings.master_keys, Purpose.BUNDLE),
        recipe(settings, agent_name, revoked_at),
    )
    return Choice(agent_name, index, found, source)


def is_current(session: Session, settings: Settings, stored: StoredPack, wanted: Source) -> bool:
    """Say whether a pack is as good as one that would be made now."""
    have = stored.source
    if have.generation != wanted.generation:
        return _rank_still(session, settings, have) > wanted.rank
    made_alike = (have.key_id, have.recipe) == (wanted.key_id, wanted.recipe)
    return made_alike and have.rank >= wanted.rank


def _rank_still(session: Session, settings: Settings, have: Source) -> int:
    """Return what still vouches for a pack, of that which is in it."""
    place = (have.generation, have.checkpoint_size)
    now = anchoring.rank_of(session, *place, settings.witness_policy, settings.tsa_ca_file)
    return have.rank & now


def recipe(settings: Settings, agent_name: str, revoked_at: datetime | None = None) -> str:
    """Name what of the service's own a pack is a function of.

    Its release, its URL and verify.py, what the agent was called when the record was made, and
    whose word counted when its rank was found: the witnesses and their quorum, the roots of
    timestamp authorities, and by when they had to have seen the log, if the bundle's key was
    revoked.
    """
    parts = (
        VERSION.encode(),
        settings.base_url.encode(),
        pack.verifier_source(),
        agent_name.encode(),
        _witnesses(settings.witness_policy),
        *([] if revoked_at is None else [rfc3339(revoked_at).encode()]),
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
    published = chosen.anchor.published
    proof = proofs.inclusion(session, published, chosen.index, published.checkpoint.size)
    return Evidence(
        bundle=raw,
        signature=record.signature,
        public_key=signing_keys.public_key(session, record.key_id),
        pack_key=signing_keys.opened(session, settings.master_keys, chosen.source.key_id),
        base_url=settings.base_url,
        release=VERSION,
        agent_name=chosen.agent_name,
        log_key=published.generation.verifier_key,
        checkpoint=published.note,
        leaf_index=chosen.index,
        path=proof.path,
        cosignatures=tuple(Signature.parse(line) for line in chosen.anchor.cosignatures),
        timestamp=chosen.anchor.timestamp,
    )
