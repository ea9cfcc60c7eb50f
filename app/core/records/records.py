"""Records: what they are and how they are read; `intake` stores them, `signing` signs them.

Ids are time, and a slow transaction commits ids that lie behind a reader. So `order=asc` is by the
number of the transaction that wrote a record, and ends before the oldest that is still writing.
"""

import json
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

from marshmallow import ValidationError
from psycopg.rows import scalar_row
from sqlalchemy import literal, select, text, tuple_
from sqlalchemy.orm import Session

from app.core import feeds
from app.core.callers import Caller
from app.core.delivery import event_types
from app.core.log import proofs
from app.core.records import retention
from app.core.records.signing import Signed
from app.database import cursor
from app.errors import FieldError, Invalid, NotFound
from app.ledger import leaves, merkle
from app.models import Record
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MAX_LABELS = 64


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

    optional: ClassVar[Collection[str]] = ("held",)

    id = fields.Id("rec")
    session_id = fields.Id("ses")
    agent_id = fields.Id("agt")
    principal = fields.Text(200)
    kind = fields.Text(200, example="tool.call")
    title = fields.Text(500, example="Refunded order 4711")
    labels = Labels(
        description=f"At most {MAX_LABELS}; each is a filter of the list (`label=name:value`).",
        example={"env": "production"},
    )
    occurred_at = fields.Time()
    created_at = fields.Time()
    bundle = fields.Object(BundleSchema)
    log = fields.Object(LogSchema)
    held = fields.Boolean(
        description="True where a legal hold keeps its content; else left out, as in the answer to "
        "its POST."
    )


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


NO_RECORD = "There is no record with this id."


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
    states = retention.states(session, rows[0].tenant_id, [row.id for row in rows])
    return [
        _json(
            row,
            index=indexes.get(row.bundle_sha256),
            expired=not states[row.id].kept,
            held=states[row.id].held,
        )
        for row in rows
    ]


def log_indexes(session: Session, digests: Sequence[bytes]) -> dict[bytes, int]:
    """Return the index in the published log of each bundle (by its SHA-256) that is in it."""
    by_hash = {leaf_hash(digest): digest for digest in digests}
    found = proofs.indexes(session, list(by_hash))
    return {by_hash[each]: index for each, index in found.items()}


def leaf_hash(digest: bytes) -> bytes:
    """Return the hash of the log's leaf for a bundle with this SHA-256."""
    return merkle.leaf_hash(leaves.record(digest))


def fresh(signed: Signed) -> dict[str, Any]:
    """Return the JSON representation of a record that is stored now, without `held`.

    Whether a hold names it is not looked up, since the way in would wait for that.
    """
    return _json(signed, index=None, expired=False)


def _json(
    row: Record | Signed, *, index: int | None, expired: bool, held: bool = False
) -> dict[str, Any]:
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
        **({"held": True} if held else {}),
    )


# Of a database that was restored elsewhere: numbers of transactions begin anew there, and what was
# written before comes first.
_RESTORED = """
SELECT t.id FROM tenants AS t
 WHERE EXISTS (SELECT FROM records AS r WHERE r.tenant_id = t.id AND r.written_by >= (
               SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint))
"""
_RENUMBER = """
UPDATE records SET written_by = 0 WHERE tenant_id = %s AND written_by >= (
       SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
"""


def rows(
    session: Session,
    caller: Caller,
    filters: Mapping[str, object],
    after: UUID | None,
    limit: int,
) -> Sequence[Record]:
    """Return up to `limit` records that the caller may see and that follow the record `after`.

    `filters` are those of `feeds.newest`. A record comes once every transaction that began to write
    before its own has ended. Raises `Invalid` when there is no such record to follow.
    """
    conditions = feeds.conditions(Record, caller, filters)
    if after is not None:
        known = select(Record.written_by).where(*feeds.visible(Record, caller), Record.id == after)
        written_by = session.scalar(known)
        if written_by is None:
            raise Invalid(FieldError("/after", "Query parameter: There is no record of this id."))
        place = tuple_(Record.written_by, Record.id)
        conditions.append(place > tuple_(literal(written_by), literal(after)))
    horizon = select(text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint"))
    found = select(Record).where(*conditions, Record.written_by < horizon.scalar_subquery())
    return session.scalars(found.order_by(Record.written_by, Record.id).limit(limit)).all()


def renumber_restored(session: Session) -> int:
    """Put records of another database before all that this one writes; return how many."""
    tenants = cursor(session, scalar_row).execute(_RESTORED).fetchall()
    cur = cursor(session)
    return sum(cur.execute(_RENUMBER, (tenant_id,)).rowcount for tenant_id in tenants)
