"""The anchors of the audit chain over HTTP: heads in the public log, and their evidence."""

from datetime import datetime
from typing import Any

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.services import caller, services, transaction
from app.api.resources.log import Hash, LogProofSchema
from app.clock import rfc3339
from app.core.anchoring import anchors, incidents
from app.core.anchoring.anchors import AnchorReader
from app.core.anchoring.evidence import Voucher
from app.core.callers import Role
from app.schemas import fields
from app.schemas.schema import AnswerSchema

blp = Blueprint(
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


@blp.route("/anchors", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(PageArgs, location="query")
@blp.response(200, AnchorPageSchema)
@blp.alt_response(409, "CONFLICT")
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
