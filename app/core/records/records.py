"""Records: signed, stored, and committed to in the log.

Signing takes time, so it happens between two short transactions: the first reads the key, the
second stores metadata, the sealed bundle and a leaf that waits for the log. Raw cursors keep this
hot path fast.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from uuid import UUID

from marshmallow import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import feeds, signing_keys
from app.core.callers import Caller
from app.core.delivery import event_types
from app.core.log import proofs
from app.core.records import bundles, retention, steps, storage
from app.core.signing_keys import Purpose
from app.database import Tx, cursor
from app.errors import NotFound, SessionCompleted
from app.evidence import bundle
from app.ledger import leaves, merkle
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import SigningKey
from app.models import Bundle, Record
from app.schemas import fields
from app.schemas.schema import AnswerSchema
from app.settings import Settings

MAX_LABELS = 64

KIND: dict[str, Any] = {"example": "tool.call"}
TITLE: dict[str, Any] = {"example": "Refunded order 4711"}
LABELS: dict[str, Any] = {
    "description": f"At most {MAX_LABELS}; each is a filter of the list (`label=name:value`).",
    "example": {"env": "production"},
}


class Labels(fields.Strict):
    """An object of strings: names without a colon, 1 to 100 characters; values up to 500."""

    json_schema: Mapping[str, Any] = MappingProxyType(
        {
            "type": "object",
            "maxProperties": MAX_LABELS,
            "propertyNames": {"pattern": r"^[^:\u0000]{1,100}$"},
            "additionalProperties": {
                "type": "string",
                "maxLength": 500,
                "pattern": r"^[^\u0000]*$",
            },
        }
    )

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValidationError("Send an object of strings.")
        if len(value) > MAX_LABELS:
            raise ValidationError(f"At most {MAX_LABELS} labels; this has {len(value)}.")
        wrong = {name: said for name, text in value.items() if (said := _refusal(name, text))}
        if wrong:
            raise ValidationError(wrong)
        return value


def _refusal(name: str, value: Any) -> list[str]:
    if not 1 <= len(name) <= 100 or ":" in name or "\0" in name:
        return ["A label's name has 1 to 100 characters, none of them a colon or U+0000."]
    if not isinstance(value, str):
        return ["Send a string."]
    if len(value) > 500 or "\0" in value:
        return ["At most 500 characters, without U+0000."]
    return []


class BundleSchema(AnswerSchema):
    """The commitment to a record's bundle, which remains after the bundle has expired."""

    sha256 = fields.Text(64)
    size = fields.Count(attribute="bundle_size")
    key_id = fields.Text(16)
    signature = fields.Text(88, description="Ed25519 over the exact bytes, base64.")
    expired = fields.Boolean()


class LogSchema(AnswerSchema):
    """The state of the bundle's commitment in the transparency log."""

    status = fields.Text(10, metadata={"enum": ["pending", "integrated"]})
    index = fields.Count(allow_none=True)


class RecordSchema(AnswerSchema):
    """A record: its metadata and its bundle's commitment, never its content."""

    id = fields.Id("rec")
    session_id = fields.Id("ses")
    agent_id = fields.Id("agt")
    principal = fields.Text(200)
    kind = fields.Text(200, metadata=KIND)
    title = fields.Text(500, metadata=TITLE)
    labels = Labels(metadata=LABELS)
    occurred_at = fields.Time()
    created_at = fields.Time()
    bundle = fields.Object(BundleSchema)
    log = fields.Object(LogSchema)


CREATED = event_types.Entry(
    "A record was signed and stored. Only webhooks whose event_types name this type get it. `data` "
    "is the record's metadata.",
    RecordSchema.json_schema(
        bundle=BundleSchema.json_schema(expired={"const": False}), log=LogSchema.json_schema()
    ),
    {
        "id": "rec_019a0b7c5d2e7f3a8b4c5d6e7f809102",
        "session_id": "ses_019a0b7c4c1d7e2f9a3b4c5d6e7f8091",
        "agent_id": "agt_019a0b7c3b0c7d1e8f2a3b4c5d6e7f80",
        "principal": "maria@example.com",
        "kind": "tool.call",
        "title": "Refunded order 4711",
        "labels": {"env": "production"},
        "occurred_at": "2026-01-31T12:01:10.000000Z",
        "created_at": "2026-01-31T12:01:10.482113Z",
        "bundle": {
            "sha256": "5e" * 32,
            "size": 2048,
            "key_id": "b79a90d42ac0e07a",
            "signature": "A" * 86 + "==",
            "expired": False,
        },
        "log": {"status": "pending", "index": None},
    },
)
"""What `record.created` is, for the catalogue of event types."""


@dataclass(frozen=True)
class NewRecord:
    """A record as its author sends it: `content` is any JSON, steps are `bundle.Step`s.

    A label `trace_id` that is the id of a trace makes the record one of that trace. `agent_version`
    is what a span says of its agent; by default the agent's own.
    """

    session_id: UUID
    kind: str
    title: str
    content: Any
    occurred_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    approvals: Sequence[bundle.Approval] = ()
    agent_version: str | None = None


_ACTORS = """
SELECT s.id, s.agent_id, s.principal, clock_timestamp(),
       s.external_id, a.external_id, a.name, a.version
  FROM sessions AS s JOIN agents AS a ON a.tenant_id = s.tenant_id AND a.id = s.agent_id
 WHERE s.tenant_id = %s AND s.id = ANY (%s)
"""
# Locked, so no record follows its session's completion.
_SESSION = """
SELECT agent_id, principal, status FROM sessions WHERE tenant_id = %s AND id = %s FOR SHARE
"""
_COLUMNS = tuple(c.key for c in Record.__table__.columns if c.key != "written_by")
_INSERT = (
    f"INSERT INTO records ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(f'%({name})s' for name in _COLUMNS)})"
)
NO_RECORD = "There is no record with this id."

_LEAF = "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (%s, %s, %s)"


@dataclass(frozen=True)
class Draft:
    """Inputs of a record's signature: its session and agent, the time, and the key."""

    agent_id: UUID
    principal: str
    agent: bundle.Agent
    session: bundle.Session
    now: datetime
    signing_key: SigningKey


@dataclass(frozen=True)
class Signed:
    """A record ready to be stored: its row, and its bundle's exact bytes."""

    row: Record
    raw: bytes


def draft(tx: Tx, caller: Caller, master_keys: MasterKeys, session_id: UUID) -> Draft | None:
    """Return the inputs of a record's signature; None when there is no such session."""
    found = drafts(tx, caller, master_keys, [session_id]).get(session_id)
    known = found is not None and caller.may_touch(found.agent_id, found.principal)
    return found if known else None


def drafts(
    tx: Tx, caller: Caller, master_keys: MasterKeys, session_ids: Iterable[UUID]
) -> dict[UUID, Draft]:
    """Return the inputs of signatures for records of the tenant's sessions that exist."""
    found = cursor(tx).execute(_ACTORS, (caller.tenant_id, list(session_ids))).fetchall()
    signing_key, since = signing_keys.current_with_age(tx, master_keys, Purpose.BUNDLE)
    made = {}
    for session_id, agent_id, principal, read_at, run, agent_external_id, name, version in found:
        # If the key was made after the time was read: no record may be older than its key.
        now = max(read_at, since)
        session = bundle.Session(id=ids.text("ses", session_id))
        if run is not None:
            session["external_id"] = run
        agent = bundle.Agent(id=ids.text("agt", agent_id), name=name)
        if agent_external_id is not None:
            agent["external_id"] = agent_external_id
        if version is not None:
            agent["version"] = version
        made[session_id] = Draft(agent_id, principal, agent, session, now, signing_key)
    return made


def sign(caller: Caller, drafted: Draft, new: NewRecord) -> Signed:
    """Write and sign a record. Slow for large ones, so no transaction may be open."""
    row = Record(
        tenant_id=caller.tenant_id,
        id=ids.new(drafted.now),
        session_id=new.session_id,
        agent_id=drafted.agent_id,
        principal=drafted.principal,
        kind=new.kind,
        title=new.title,
        labels_json=fields.json_text(dict(new.labels)),
        occurred_at=new.occurred_at or drafted.now,
        created_at=drafted.now,
        trace_id=_trace_id(new.labels),
    )
    key = drafted.signing_key
    facts = _facts(row, drafted, new)
    raw = bundle.write(facts, new.content, new.steps, new.approvals, key_id=key.public.id)
    row.bundle_sha256, row.bundle_size = sha256(raw).digest(), len(raw)
    row.key_id, row.signature = key.public.id, key.sign(raw)
    return Signed(row, raw)


def add(
    tx: Tx, caller: Caller, settings: Settings, session_id: UUID, signed: Signed | None
) -> dict[str, Any]:
    """Store a signed record; return its JSON representation.

    Raises `NotFound` when its session does not exist (`signed` is None then) or is outside the
    caller's pin, `SessionCompleted` when the session has ended, also since the record was signed,
    and `StorageLimit` when the tenant's limits are reached.
    """
    stored = storage.use_of(tx, caller.tenant_id)
    found = cursor(tx).execute(_SESSION, (caller.tenant_id, session_id)).fetchone()
    if found is None or signed is None or not caller.may_touch(found[0], found[1]):
        raise NotFound("There is no session with this id.")
    if found[2] == "completed":
        raise SessionCompleted(
            "This session is completed; open a new one for what the agent does next."
        )
    storage.require_room(stored, len(signed.raw), settings)
    row = signed.row
    cursor(tx).execute(_INSERT, {name: getattr(row, name) for name in _COLUMNS})
    bundles.store(tx, settings.master_keys, row.tenant_id, row.id, signed.raw, row.bundle_sha256)
    leaf = leaves.Record(row.bundle_sha256).data
    cursor(tx).execute(_LEAF, (ids.new(row.created_at), merkle.leaf_hash(leaf), leaf))
    return _json(row, index=None, expired=False)


def find(session: Session, caller: Caller, record_id: UUID | None) -> Record:
    """Return one record; raises `NotFound` if it does not exist or the caller may not see it."""
    return feeds.find(session, Record, caller, record_id, NO_RECORD)


def shared(session: Session, tenant_id: UUID, record_id: UUID) -> Record:
    """Return a record for a reader without a key; raises `NotFound`."""
    found = session.get(Record, (tenant_id, record_id))
    if found is None:
        raise NotFound(NO_RECORD)
    return found


def represent(session: Session, rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the JSON representations of one tenant's records: metadata, never content."""
    if not rows:
        return []
    indexes = log_indexes(session, [row.bundle_sha256 for row in rows])
    kept = _kept(session, rows)
    return [
        _json(row, index=indexes.get(row.bundle_sha256), expired=row.id not in kept) for row in rows
    ]


def log_indexes(session: Session, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Return the index in the published log of each bundle (by its SHA-256) that is in it."""
    by_hash = {leaf_hash(digest): digest for digest in digests}
    found = proofs.indexes(session, list(by_hash))
    return {by_hash[each]: index for each, index in found.items()}


def leaf_hash(digest: bytes) -> bytes:
    """Return the hash of the log's leaf for a bundle with this SHA-256."""
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


def _trace_id(labels: Mapping[str, str]) -> str | None:
    told = labels.get("trace_id", "")
    return told if bundle.is_trace_id(told) else None


def _facts(row: Record, drafted: Draft, new: NewRecord) -> bundle.Record:
    """Return the metadata in a record's bundle."""
    agent = drafted.agent
    if new.agent_version is not None:
        agent = bundle.Agent(**{**agent, "version": new.agent_version})
    facts = bundle.Record(
        id=ids.text("rec", row.id),
        tenant_id=ids.text("ten", row.tenant_id),
        session=drafted.session,
        agent=agent,
        principal=row.principal,
        kind=row.kind,
        title=row.title,
        labels=dict(new.labels),
        occurred_at=rfc3339(row.occurred_at),
        created_at=rfc3339(row.created_at),
    )
    if row.trace_id is not None:
        facts["trace_id"] = row.trace_id
    if models := steps.models(new.steps):
        facts["models"] = models
    return facts


def _json(row: Record, *, index: int | None, expired: bool) -> dict[str, Any]:
    """Return a record's JSON representation; `index` is its index in the published log."""
    return RecordSchema.of(
        row,
        labels=json.loads(row.labels_json),
        bundle=BundleSchema.of(
            row,
            sha256=row.bundle_sha256.hex(),
            signature=b64encode(row.signature).decode(),
            expired=expired,
        ),
        log={"status": "pending" if index is None else "integrated", "index": index},
    )
