"""An audit chain's verification over HTTP, as its report tells it, and the anchors of the chain."""

import enum
from datetime import datetime
from typing import Any

from flask import Response
from marshmallow import ValidationError, validate, validates_schema
from marshmallow import fields as plain
from sqlalchemy.orm import Session

from app.api.http.auth import READ_TENANT
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.routes import Routes
from app.api.http.services import caller, services, transaction
from app.api.resources.log import Hash, LogProofSchema
from app.clock import rfc3339
from app.core.anchoring import anchors, incidents
from app.core.anchoring.anchors import AnchorReader
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


anchors_blp = Routes(
    "anchors",
    __name__,
    url_prefix="/v1/audit",
    description="Anchors of the audit chain: its heads in the transparency log.",
)

_BASE64 = {"contentEncoding": "base64"}


class AnchorSchema(AnswerSchema):
    """A head of the chain in the log. Proof, timestamp and cosignatures are of one checkpoint.

    `chain` is the name of this tenant's chain in the log. `log_proof` is null until a published
    checkpoint covers the head.
    """

    seq = fields.Count(1)
    hash = Hash()
    at = fields.Time()
    chain = Hash()
    log_proof = fields.Object(LogProofSchema, allow_none=True)
    vkey = fields.Text(1000, allow_none=True, description="The log's verifier key.")
    timestamp = fields.Text(
        100_000,
        allow_none=True,
        description="The RFC 3161 response over the checkpoint.",
        metadata=_BASE64,
    )
    tsa_chain = fields.Text(
        1_000_000,
        allow_none=True,
        description="PEM: the certificates above the authority's, root included.",
    )
    cosignatures = fields.Items(fields.Text(20_000), max_items=1000)


class TroubleSchema(AnswerSchema):
    """A part of anchoring that fails; it affects all tenants."""

    part = fields.Text(1000, description="`heads`, `log`, `timestamps`, `quorum`, or `witness …`.")
    since = fields.Time()
    alarm = fields.Boolean(description="This witness has cosigned another log of our name.")
    detail = fields.Text(1000)


class AnchoringSchema(AnswerSchema):
    """How far the chain is anchored, by which evidence, and what fails at present."""

    enabled = fields.Boolean()
    disabled_since = fields.Time(
        allow_none=True, description="Null also if no entry of the chain says when."
    )
    anchored_through = fields.Count(
        1,
        allow_none=True,
        description="The newest entry whose head is in the published log.",
    )
    unanchored_since = fields.Time(
        allow_none=True, description="When the first entry after that was made; null without one."
    )
    anchored_by = fields.Items(
        fields.Choice(Voucher),
        max_items=len(Voucher),
        description="The stored evidence for the head of `anchored_through`.",
    )
    troubles = fields.Items(fields.Object(TroubleSchema), max_items=1000)
    detail = fields.Text(1000)


AnchorPageSchema = page_schema(AnchorSchema, anchoring=fields.Object(AnchoringSchema))


@anchors_blp.serves(
    "GET /anchors", READ_TENANT, AnchorPageSchema, args=PageArgs, errors=(409,), endpoint="list"
)
def list_anchors(args: dict[str, Any]) -> Response:
    """List the anchors of the audit chain

    Newest first, each with its best evidence. Best is a quorum of witnesses with a timestamp, then
    a quorum alone, a timestamp alone, and the log alone; of equals, the earliest checkpoint.
    `anchoring` says how far the chain is anchored, by which stored evidence, and what fails at
    present.
    """
    with transaction(snapshot=True) as session:
        reader = anchor_reader(session)
        return page(
            args,
            reader.rows,
            reader.represent,
            position=lambda anchor: anchor.seq,
            beside=lambda _: {"anchoring": anchoring(session, reader)},
        )


def anchor_reader(session: Session) -> AnchorReader:
    """Return a reader of the anchors of the caller's chain."""
    settings = services().settings
    return AnchorReader(
        session,
        caller().tenant_id,
        settings.witness_policy,
        settings.master_keys,
        settings.tsa_ca_file,
    )


def anchoring(session: Session, reader: AnchorReader) -> dict[str, Any]:
    """Return `AnchoringSchema`: how far the caller's chain is anchored, and what fails."""
    state, covered = anchors.state_of(session, caller().tenant_id), reader.covered()
    others = anchors.others_asked(services().settings)
    return {
        "enabled": state.enabled,
        "disabled_since": _time(state.disabled_since),
        "anchored_through": covered.through,
        "unanchored_since": _time(covered.unanchored_since),
        "anchored_by": list(covered.vouchers),
        "troubles": [
            {
                "part": each.part,
                "since": rfc3339(each.since),
                "alarm": each.alarm,
                "detail": anchors.trouble_text(each),
            }
            for each in incidents.rows(session)
        ],
        "detail": anchors.of_chain(state, covered, others),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
