"""The audit chain over HTTP: in pages, as a whole, and verified."""

import enum
from typing import Any

from flask import Response
from marshmallow import ValidationError, validate, validates_schema
from marshmallow import fields as plain

from app.api import audit_exports, fields, parsing
from app.api.answers import answer
from app.api.auth import caller, requires
from app.api.feeds import filters
from app.api.jobs import JobSchema
from app.api.paging import PageArgs, page
from app.api.parsing import Blueprint
from app.api.services import services
from app.api.transactions import transaction
from app.core import audit_view, job_control
from app.core.anchoring.evidence import Voucher
from app.core.callers import Role
from app.core.verification import jobs as audit_jobs
from app.core.verification.deadline import TakesLonger
from app.lib.canonical_json import MAX_INTEGER

blp = Blueprint(
    "audit",
    __name__,
    url_prefix="/v1/audit",
    description="Who did what: a chain of entries, each holding the hash of the one before.",
)

_SECONDS = 10.0

_HASH: dict[str, Any] = {"pattern": "^[0-9a-f]{64}$"}


class AuditArgs(PageArgs):
    """Filters of the audit chain; all that are given must hold."""

    order = fields.Choice(audit_view.Order, load_default=audit_view.Order.DESCENDING)
    action = fields.Text(100, metadata={"example": "webhook.create"})
    since = fields.Time(metadata={"description": "Appended at this moment or later."})
    until = fields.Time(metadata={"description": "Appended before this moment."})


class Since(enum.StrEnum):
    """Where a verification begins."""

    ANCHOR = "anchor"


class Full(enum.StrEnum):
    """Whether to verify all that there is."""

    NO = "0"
    YES = "1"


class Verdict(enum.StrEnum):
    """How far a chain was found intact."""

    INTACT = "intact"
    INTACT_SINCE_ANCHOR = "intact-since-anchor"


class VerifyArgs(fields.Schema):
    """What to verify. Of a head that the caller kept, both members or none."""

    seq = fields.QueryInteger(1, MAX_INTEGER, metadata={"description": "`head.seq` of then."})
    hash = fields.Text(
        64,
        validate=validate.Regexp(r"[0-9a-f]{64}\Z", error="Send 64 lower-case hex digits."),
        metadata={"description": "`head.hash` of then.", **_HASH},
    )
    since = fields.Choice(
        Since, metadata={"description": "`anchor`: only what came after the newest anchor."}
    )
    full = fields.Choice(
        Full, metadata={"description": "`1`: every timestamp and cosignature, not the newest."}
    )

    @validates_schema
    def _both(self, data: dict[str, Any], **_: Any) -> None:
        for given, missing in (("seq", "hash"), ("hash", "seq")):
            if given in data and missing not in data:
                raise ValidationError(f"Send it together with {given}.", missing)


class ActorSchema(fields.Schema):
    """Who did it."""

    type = fields.Text(50, required=True)
    id = fields.Text(200, required=True)
    role = fields.Choice(Role)


class TargetSchema(fields.Schema):
    """What it was done to."""

    type = fields.Text(50, required=True)
    id = fields.Text(200, required=True)


class EntrySchema(fields.Schema):
    """One entry. `hash` is the SHA-256 of the canonical JSON (RFC 8785) of all other members."""

    seq = fields.Integer(1, MAX_INTEGER, required=True)
    at = fields.Time(required=True)
    tenant_id = fields.Id("ten", required=True)
    actor = fields.Object(ActorSchema, required=True)
    action = fields.Text(100, required=True)
    target = fields.Object(TargetSchema, required=True)
    details = fields.JsonObject(parsing.MAX_BODY, required=True)
    request_id = fields.Text(128, required=True, allow_none=True)
    prev_hash = fields.Text(64, required=True, metadata=_HASH)
    hash = fields.Text(64, required=True, metadata=_HASH)


class EntryPageSchema(fields.Schema):
    """One page of the chain."""

    data = fields.Items(fields.Object(EntrySchema), required=True, max_items=200)
    next_cursor = fields.Text(1000, required=True, allow_none=True)


class HeadSchema(fields.Schema):
    """The newest entry of a chain."""

    seq = fields.Integer(1, MAX_INTEGER, required=True)
    hash = fields.Text(64, required=True, metadata=_HASH)


class NewestTimestampSchema(fields.Schema):
    """A timestamp by an authority (RFC 3161): of the log at which size, and when."""

    size = fields.Integer(0, MAX_INTEGER, required=True)
    at = fields.Time(required=True)


class AnchorsSchema(fields.Schema):
    """What the chain was held against outside itself."""

    enabled = plain.Boolean(required=True)
    disabled_since = fields.Time(required=True, allow_none=True)
    checked = fields.Integer(
        0, MAX_INTEGER, required=True, metadata={"description": "Heads that the log took in."}
    )
    pending = fields.Integer(
        0, MAX_INTEGER, required=True, metadata={"description": "Heads that wait for the log."}
    )
    leaf_index = fields.Integer(0, MAX_INTEGER, required=True, allow_none=True)
    anchored_by = fields.Items(
        fields.Choice(Voucher),
        required=True,
        max_items=3,
        metadata={"description": "What vouches for the newest head."},
    )
    timestamps = fields.Integer(0, MAX_INTEGER, required=True)
    newest_timestamp = fields.Object(NewestTimestampSchema, required=True, allow_none=True)
    cosignatures = fields.Integer(0, MAX_INTEGER, required=True)


class PredecessorSchema(fields.Schema):
    """A log that ended, and how many of its leaves are still held and were verified."""

    origin = fields.Text(1000, required=True)
    size = fields.Integer(0, MAX_INTEGER, required=True)
    held = fields.Integer(0, MAX_INTEGER, required=True)


class VerifiedLogSchema(fields.Schema):
    """The log as it was published last, whose signature was verified."""

    origin = fields.Text(1000, required=True)
    size = fields.Integer(0, MAX_INTEGER, required=True)
    root = fields.Text(64, required=True, metadata=_HASH)
    predecessors = fields.Items(fields.Object(PredecessorSchema), required=True, max_items=10_000)


class SinceSchema(HeadSchema):
    """The anchor from which on the chain was verified."""

    leaf_index = fields.Integer(0, MAX_INTEGER, required=True)


class VerificationSchema(fields.Schema):
    """A chain that holds. Keep `head`: it finds a later cut or rewriting of what was before it."""

    status = fields.Choice(Verdict, required=True)
    entries = fields.Integer(1, MAX_INTEGER, required=True)
    head = fields.Object(HeadSchema, required=True)
    anchored_through = fields.Integer(1, MAX_INTEGER, required=True, allow_none=True)
    unanchored_entries = fields.Integer(0, MAX_INTEGER, required=True)
    anchors = fields.Object(AnchorsSchema, required=True)
    log = fields.Object(VerifiedLogSchema, required=True, allow_none=True)
    head_store = fields.Text(200, required=True, metadata={"example": "kept"})
    unknown_chains = fields.Integer(
        0,
        MAX_INTEGER,
        required=True,
        metadata={"description": "Chains in the log that no tenant of this service has any more."},
    )
    since = fields.Object(SinceSchema)
    leaves_read_from = fields.Integer(
        0, MAX_INTEGER, metadata={"description": "With `since`: the first leaf that was read."}
    )


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(AuditArgs, location="query")
@blp.response(200, EntryPageSchema)
@blp.alt_response(409, "CONFLICT")
@blp.doc(responses={200: {"content": {audit_exports.NDJSON: {"schema": {"type": "string"}}}}})
def list_entries(args: dict[str, Any]) -> Response:
    """List the audit chain, or export it.

    Newest first, or oldest with `order=asc`. With `Accept: application/x-ndjson` the whole chain
    streams, oldest first, one entry a line; it ends with the entry that records this export and
    then a line of `type` `trailer`. Without that line an export is incomplete.
    """
    if audit_exports.is_asked_for():
        return audit_exports.export()
    with transaction() as session:
        return page(
            args,
            lambda *where: audit_view.rows(session, caller(), filters(args), *where),
            audit_view.represent,
            position=lambda entry: entry.seq,
        )


@blp.route("/verify", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.arguments(VerifyArgs, location="query")
@blp.response(200, VerificationSchema)
@blp.alt_response(202, schema=JobSchema)
@blp.alt_response(409, "CONFLICT")
def verify(args: dict[str, Any]) -> Response:
    """Verify the audit chain.

    Recomputes every hash and link in one snapshot, and holds the chain against every head of it
    that the transparency log ever took in; the log against its signed checkpoint, its newest
    timestamp and its head outside the database. With `seq` and `hash` of a head that you kept, the
    chain must lead through it too. `since=anchor` begins at the newest anchor that the log proves,
    and costs what came after it. A broken chain is answered 409 with the first bad `seq`, what was
    expected and what was found; a database older than its log 409 `log-rolled-back`. What takes
    longer than ten seconds is done by a job: 202, with the job's `Location`.
    """
    asked = audit_jobs.asked(args)
    here = services()
    try:
        found = here.verifier.verify(caller().tenant_id, asked, _SECONDS)
    except TakesLonger:
        with transaction() as session:
            job = job_control.represent(audit_jobs.enqueue(session, caller().tenant_id, asked))
        return answer(job, 202, {"Location": f"/v1/jobs/{job['id']}", "Retry-After": "5"})
    return answer(found)
