"""Schemas of an audit chain's verification: its parameters and its report."""

import enum
from typing import Any

from marshmallow import ValidationError, validate, validates_schema
from marshmallow import fields as plain

from app.core.anchoring.evidence import Voucher
from app.lib.canonical_json import MAX_INTEGER
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

HASH: dict[str, Any] = {"pattern": "^[0-9a-f]{64}$"}
_IN_HEX = validate.Regexp(r"[0-9a-f]{64}\Z", error="Send 64 lower-case hex digits.")


class Since(enum.StrEnum):
    """Where a verification begins."""

    ANCHOR = "anchor"


class Full(enum.StrEnum):
    """Whether to verify all timestamps and cosignatures."""

    NO = "0"
    YES = "1"


class Verdict(enum.StrEnum):
    """How far a chain was found intact."""

    INTACT = "intact"
    INTACT_SINCE_ANCHOR = "intact-since-anchor"


class VerifyArgs(Schema):
    """Parameters of a verification. A kept head is given by both `seq` and `hash`."""

    seq = fields.QueryInteger(1, MAX_INTEGER, description="`head.seq` of a kept report.")
    hash = fields.Text(
        64,
        validate=_IN_HEX,
        description="`head.hash` of the same report.",
        metadata=HASH,
    )
    chain = fields.Text(
        64,
        validate=_IN_HEX,
        description="`chain` of the same report: the chain's name must still be the same.",
        metadata=HASH,
    )
    since = fields.Choice(Since, description="`anchor`: only entries after the newest anchor.")
    full = fields.Choice(Full, description="`1`: all timestamps and cosignatures, not the newest.")

    @validates_schema
    def _both(self, data: dict[str, Any], **_: Any) -> None:
        for given, missing in (("seq", "hash"), ("hash", "seq")):
            if given in data and missing not in data:
                raise ValidationError(f"Send it together with {given}.", missing)
        if "since" in data and data.get("full") == Full.YES:
            raise ValidationError("Either all that there is, or since the newest anchor.", "full")


class HeadSchema(AnswerSchema):
    """The newest entry of a chain."""

    seq = fields.Count(1)
    hash = fields.Text(64, metadata=HASH)


class NewestTimestampSchema(AnswerSchema):
    """A timestamp by an authority (RFC 3161): its time, and the log size that it covers."""

    size = fields.Count()
    at = fields.Time()


class AnchorsSchema(AnswerSchema):
    """Evidence outside the chain, with which the chain was compared."""

    enabled = plain.Boolean()
    disabled_since = fields.Time(allow_none=True)
    checked = fields.Count(description="Heads that the log has integrated.")
    pending = fields.Count(description="Heads not integrated into the log yet.")
    leaf_index = fields.Count(allow_none=True)
    anchored_by = fields.Items(
        fields.Choice(Voucher),
        allow_none=True,
        max_items=3,
        description="The evidence for the newest head; null with `since`.",
    )
    timestamps = fields.Count(allow_none=True)
    timestamps_unverified = fields.Count(
        allow_none=True,
        description="Timestamps of authorities that are not trusted here; they do not count.",
    )
    newest_timestamp = fields.Object(NewestTimestampSchema, allow_none=True)
    cosignatures = fields.Count(allow_none=True)


class PredecessorSchema(AnswerSchema):
    """A log that ended, and how many of its leaves are still held and were verified."""

    origin = fields.Text(1000)
    size = fields.Count()
    held = fields.Count()


class VerifiedLogSchema(AnswerSchema):
    """The newest published checkpoint of the log; its signature was verified."""

    origin = fields.Text(1000)
    size = fields.Count()
    root = fields.Text(64, metadata=HASH)
    predecessors = fields.Items(fields.Object(PredecessorSchema), max_items=10_000)


class SinceSchema(HeadSchema):
    """The anchor from which on the chain was verified."""

    leaf_index = fields.Count()


class VerificationSchema(AnswerSchema):
    """The report of an intact chain. Keep `head`, to detect a later truncation or rewriting."""

    optional = ("since", "leaves_read_from")

    status = fields.Choice(Verdict)
    verified_at = fields.Time(description="The moment of the snapshot that was read.")
    chain = fields.Text(64, description="The chain's name in the log.", metadata=HASH)
    entries = fields.Count(1)
    head = fields.Object(HeadSchema)
    anchored_through = fields.Count(1, allow_none=True)
    unanchored_entries = fields.Count()
    anchors = fields.Object(AnchorsSchema)
    log = fields.Object(VerifiedLogSchema, allow_none=True)
    head_store = fields.Text(200, example="kept")
    unknown_chains = fields.Count(
        allow_none=True,
        description="Chains in the log that belong to no tenant of this service any more;"
        " null if no daily verification has counted them.",
    )
    unknown_chains_at = fields.Time(allow_none=True)
    since = fields.Object(SinceSchema)
    leaves_read_from = fields.Count(description="With `since`: the first leaf that was read.")
