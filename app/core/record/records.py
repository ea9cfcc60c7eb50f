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
from app.core.record import bundles, facets, retention, search_keys, word_tables, words
from app.core.signing_keys import Purpose
from app.database import Tx, cursor
from app.errors import NotFound, SessionCompleted
from app.evidence import bundle
from app.ledger import leaves, merkle
from app.lib.sealing import MasterKeys
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
_COLUMNS = tuple(column.key for column in Record.__table__.columns)
_INSERT = (
    f"INSERT INTO records ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(f'%({name})s' for name in _COLUMNS)})"
)
NO_RECORD = "There is no record with this id."

_LEAF = "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (%s, %s, %s)"


def add(tx: Tx, caller: Caller, master_keys: MasterKeys, new: NewRecord) -> dict[str, Any]:
    """Sign and store a record; return it as its GET answers it.

    Raises `NotFound` when its session does not exist or is outside the caller's pin, and
    `SessionCompleted` when that has ended.
    """
    agent_id, principal, now = _session(tx, caller, new.session_id)
    signer = signing_keys.current(tx, master_keys, Purpose.BUNDLE)
    row = Record(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        session_id=new.session_id,
        agent_id=agent_id,
        principal=principal,
        kind=new.kind,
        title=new.title,
        labels_json=documents.to_text(dict(new.labels)),
        occurred_at=new.occurred_at or now,
        created_at=now,
    )
    raw = bundle.write(_facts(row), new.content, new.steps, key_id=signer.public.id)
    row.bundle_sha256, row.bundle_size = sha256(raw).digest(), len(raw)
    row.key_id, row.signature = signer.public.id, signer.sign(raw)
    cursor(tx).execute(_INSERT, {name: getattr(row, name) for name in _COLUMNS})
    bundles.store(tx, master_keys, row.tenant_id, row.id, raw, row.bundle_sha256)
    _store_words(tx, master_keys, row, new)
    leaf = leaves.Record(row.bundle_sha256).data
    cursor(tx).execute(_LEAF, (ids.new(now), merkle.leaf_hash(leaf), leaf))
    return _json(row, index=None, expired=False)


def _store_words(tx: Tx, master_keys: MasterKeys, row: Record, new: NewRecord) -> None:
    """Keep what the record is found by: in its metadata, and in its content."""
    lexemes = search_keys.lexemes(tx, master_keys, row.tenant_id)
    pairs = {**new.labels, **facets.of(row.session_id, row.agent_id, row.principal, row.kind)}
    told = (row.title, row.kind, *new.labels, *new.labels.values())
    contained = (*(step["name"] for step in new.steps), *words.in_json(new.content))
    word_tables.store(tx, lexemes, row.tenant_id, row.id, pairs, told, contained)


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
        _json(row, index=indexes.get(row.bundle_sha256), expired=row.id not in kept) for row in rows
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


def _facts(row: Record) -> bundle.Record:
    """Return what a record's bundle says of it."""
    return {
        "id": ids.text("rec", row.id),
        "tenant_id": ids.text("ten", row.tenant_id),
        "session_id": ids.text("ses", row.session_id),
        "agent_id": ids.text("agt", row.agent_id),
        "principal": row.principal,
        "kind": row.kind,
        "title": row.title,
        "labels": json.loads(row.labels_json),
        "occurred_at": rfc3339(row.occurred_at),
        "created_at": rfc3339(row.created_at),
    }


def _json(row: Record, *, index: int | None, expired: bool) -> dict[str, Any]:
    """Return a record as its GET answers it; `index` is its place in the published log."""
    return {
        **{name: value for name, value in _facts(row).items() if name != "tenant_id"},
        "bundle": {
            "sha256": row.bundle_sha256.hex(),
            "size": row.bundle_size,
            "key_id": row.key_id,
            "signature": b64encode(row.signature).decode(),
            "expired": expired,
        },
        "log": {"status": "pending" if index is None else "integrated", "index": index},
    }
