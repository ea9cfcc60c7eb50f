"""Records: what an agent did, signed as it comes in, and committed to in the log.

One transaction stores the metadata, the bundle (its exact bytes, sealed) and a leaf that waits for
the log; a few statements through a raw cursor, for this is a path on which agents wait. Steps and
content live in the bundle alone, and end with it.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import documents, feeds, signing_keys
from app.core.callers import Caller
from app.core.log import proofs
from app.core.record import bundles, retention, search_keys, word_tables, words
from app.core.signing_keys import Purpose
from app.database import Tx, cursor
from app.errors import NotFound, SessionCompleted
from app.evidence import bundle
from app.ledger import leaves, merkle
from app.lib.sealing import MasterKeys
from app.lib.signing import SigningKey
from app.models import Bundle, Record


@dataclass(frozen=True)
class NewRecord:
    """A record as its author sends it: `content` is any JSON, `steps` are JSON-ready objects."""

    session_id: UUID
    kind: str
    title: str
    content: Any
    occurred_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[bundle.Step] = ()


# The row lock keeps a record from coming in behind its session's completion.
_SESSION = """
SELECT agent_id, principal, status, clock_timestamp() FROM sessions
 WHERE tenant_id = %s AND id = %s FOR SHARE
"""
_INSERT = """
INSERT INTO records (tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                     occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
NO_RECORD = "There is no record with this id."
_LEAF = "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (%s, %s, %s)"


def add(tx: Tx, caller: Caller, master_keys: MasterKeys, new: NewRecord) -> dict[str, Any]:
    """Sign and store a record; return it as its GET answers it.

    Raises `NotFound` when its session does not exist or is outside the caller's pin, and
    `SessionCompleted` when that has ended.
    """
    agent_id, principal, now = _session(tx, caller, new.session_id)
    signer = signing_keys.current(tx, master_keys, Purpose.BUNDLE)
    record_id = ids.new(now)
    facts: bundle.Record = {
        "id": ids.text("rec", record_id),
        "tenant_id": ids.text("ten", caller.tenant_id),
        "session_id": ids.text("ses", new.session_id),
        "agent_id": ids.text("agt", agent_id),
        "principal": principal,
        "kind": new.kind,
        "title": new.title,
        "labels": dict(new.labels),
        "occurred_at": rfc3339(new.occurred_at or now),
        "created_at": rfc3339(now),
    }
    signed = _sign(signer, facts, new)
    cursor(tx).execute(
        _INSERT,
        (
            caller.tenant_id,
            record_id,
            new.session_id,
            agent_id,
            principal,
            new.kind,
            new.title,
            documents.to_text(facts["labels"]),
            new.occurred_at or now,
            signed.sha256,
            len(signed.raw),
            signer.public.id,
            signed.signature,
            now,
        ),
    )
    bundles.store(tx, master_keys, caller.tenant_id, record_id, signed.raw, signed.sha256)
    lexemes = search_keys.lexemes(tx, master_keys, caller.tenant_id)
    word_tables.store(tx, lexemes, caller.tenant_id, record_id, new.labels, *_texts(new))
    leaf = leaves.Record(signed.sha256).data
    cursor(tx).execute(_LEAF, (ids.new(now), merkle.leaf_hash(leaf), leaf))
    return {
        **_without_tenant(facts),
        "bundle": _bundle_json(
            signed.sha256, len(signed.raw), signer.public.id, signed.signature, expired=False
        ),
        "log": _log_json(None),
    }


def _texts(new: NewRecord) -> tuple[Sequence[str], Sequence[str]]:
    """Return what a record is found by: in its metadata, and in its content."""
    told = (new.title, new.kind, *new.labels, *new.labels.values())
    return told, (*(step["name"] for step in new.steps), *words.in_json(new.content))


@dataclass(frozen=True)
class _Signed:
    raw: bytes
    sha256: bytes
    signature: bytes


def _session(tx: Tx, caller: Caller, session_id: UUID) -> tuple[UUID, str, datetime]:
    found = cursor(tx).execute(_SESSION, (caller.tenant_id, session_id)).fetchone()
    if found is None or not caller.may_touch(found[0], found[1]):
        raise NotFound("There is no session with this id.")
    agent_id, principal, status, now = found
    if status == "completed":
        raise SessionCompleted(
            "This session is completed; open a new one for what the agent does next."
        )
    return agent_id, principal, now


def _sign(signer: SigningKey, facts: bundle.Record, new: NewRecord) -> _Signed:
    written = bundle.write(facts, new.content, new.steps, key_id=signer.public.id)
    return _Signed(written, sha256(written).digest(), signer.sign(written))


def find(session: Session, caller: Caller, record_id: UUID | None) -> Record:
    """Return one record; raises `NotFound` when there is none that the caller may see."""
    found = session.scalars(
        select(Record).where(*feeds.visible(Record, caller), Record.id == record_id)
    ).one_or_none()
    if found is None:
        raise NotFound(NO_RECORD)
    return found


def shared(session: Session, tenant_id: UUID, record_id: UUID) -> Record:
    """Return a record whose reader needs no key; `NotFound` when the tenant has none such."""
    found = session.get(Record, (tenant_id, record_id))
    if found is None:
        raise NotFound(NO_RECORD)
    return found


def represent(session: Session, rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Return records of one tenant as their GET answers them: metadata and never content."""
    if not rows:
        return []
    indexes = log_indexes(session, [row.bundle_sha256 for row in rows])
    kept = _kept(session, rows)
    return [
        {
            "id": ids.text("rec", row.id),
            "session_id": ids.text("ses", row.session_id),
            "agent_id": ids.text("agt", row.agent_id),
            "principal": row.principal,
            "kind": row.kind,
            "title": row.title,
            "labels": json.loads(row.labels_json),
            "occurred_at": rfc3339(row.occurred_at),
            "created_at": rfc3339(row.created_at),
            "bundle": _bundle_json(
                row.bundle_sha256,
                row.bundle_size,
                row.key_id,
                row.signature,
                expired=row.id not in kept,
            ),
            "log": _log_json(indexes.get(row.bundle_sha256)),
        }
        for row in rows
    ]


def log_indexes(session: Session, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Return the place in the published log of each bundle (by its SHA-256) that has one."""
    by_hash = {leaf_hash(digest): digest for digest in digests}
    found = proofs.indexes(session, list(by_hash))
    return {by_hash[each]: index for each, index in found.items()}


def leaf_hash(digest: bytes) -> bytes:
    """Return the hash of the leaf that commits to a bundle, by its SHA-256."""
    return merkle.leaf_hash(leaves.Record(digest).data)


def _kept(session: Session, rows: Sequence[Record]) -> set[UUID]:
    """Return which of the records still have a bundle that may be read."""
    tenant_id = rows[0].tenant_id
    due = retention.due_before(session, tenant_id)
    young = [row.id for row in rows if due is None or row.created_at > due]
    return set(
        session.scalars(
            select(Bundle.record_id).where(
                Bundle.tenant_id == tenant_id, Bundle.record_id.in_(young)
            )
        )
    )


def _without_tenant(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "tenant_id"}


def _bundle_json(
    digest: bytes, size: int, key_id: str, signature: bytes, *, expired: bool
) -> dict[str, Any]:
    return {
        "sha256": digest.hex(),
        "size": size,
        "key_id": key_id,
        "signature": b64encode(signature).decode(),
        "expired": expired,
    }


def _log_json(index: int | None) -> dict[str, Any]:
    return {"status": "pending" if index is None else "integrated", "index": index}
