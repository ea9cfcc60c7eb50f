"""Schemas of the transparency log's routes."""

import re
from typing import Any

from marshmallow import ValidationError, validates_schema
from marshmallow import fields as plain

from app import fields
from app.ledger.merkle import MAX_SIZE
from app.schemas import AnswerSchema, Schema

_HEX = re.compile(r"[0-9a-f]{64}")


class Hash(fields.Strict):
    """A SHA-256 in lower-case hex, as its 32 bytes."""

    json_schema: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}  # noqa: RUF012  # never changed

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> bytes:
        if not isinstance(value, str) or not _HEX.fullmatch(value):
            raise ValidationError("Send 64 digits of hex in lower case.")
        return bytes.fromhex(value)


def _path() -> fields.Items:
    return fields.Items(Hash(), max_items=130)


def _size(**options: Any) -> fields.QueryInteger:
    return fields.QueryInteger(0, MAX_SIZE, **options)


class InclusionArgs(Schema):
    """Query parameters of an inclusion proof: the leaf and the tree size."""

    leaf_hash = Hash(description="The leaf's hash; or send `index`.")
    index = _size(description="The leaf's index, from 0; or send `leaf_hash`.")
    size = _size(description="The tree size; absent: the published size.")

    @validates_schema
    def _check_one(self, args: dict[str, Any], **_: Any) -> None:
        if ("leaf_hash" in args) == ("index" in args):
            raise ValidationError("Send either leaf_hash or index.", "index")


class ConsistencyArgs(Schema):
    """Query parameters of a consistency proof: the two tree sizes."""

    since = _size(data_key="from", required=True)
    to = _size(description="The larger tree size; absent: the published size.")


class InclusionSchema(AnswerSchema):
    """Inclusion proof: a leaf's index and its path to the root (RFC 9162 section 2.1.3)."""

    leaf_index = fields.Count()
    leaf_hash = Hash()
    tree_size = fields.Count()
    root = Hash()
    inclusion = _path()


class ConsistencySchema(AnswerSchema):
    """Consistency proof between two tree sizes (RFC 9162 section 2.1.4)."""

    since = fields.Count(data_key="from")
    to = fields.Count()
    consistency = _path()


class LogProofSchema(AnswerSchema):
    """Everything needed to verify a record's commitment offline, except the log's public key."""

    leaf_index = fields.Count()
    leaf_data = fields.Text(100_000, description="Base64.")
    leaf_hash = Hash()
    tree_size = fields.Count(1)
    inclusion = _path()
    checkpoint = fields.Text(100_000, description="The signed note (C2SP tlog-checkpoint).")


class JwksSchema(AnswerSchema):
    """A JSON Web Key Set (RFC 7517)."""

    keys = plain.List(plain.Dict(keys=plain.String()))
