"""The audit chain over HTTP: in pages, as a whole, and verified."""

import enum
from collections.abc import Iterator
from itertools import chain
from threading import BoundedSemaphore
from typing import Any

from flask import Response, request
from marshmallow import ValidationError, validate, validates_schema
from marshmallow import fields as plain

from app.api import fields, parsing
from app.api.answers import answer
from app.api.auth import caller, requires
from app.api.feeds import filters
from app.api.jobs import JobSchema
from app.api.paging import PageArgs, page
from app.api.parsing import Blueprint
from app.api.services import services
from app.api.transactions import transaction
from app.core import audit_export, audit_view, job_control
from app.core.anchoring.evidence import Voucher
from app.core.callers import Caller, Role
from app.core.verification import jobs as audit_jobs
from app.core.verification.deadline import TakesLonger
from app.core.verification.verifier import Asked
from app.database import Database
from app.errors import FieldError, Invalid
from app.ledger.hash_chain import Head
from app.lib.canonical_json import MAX_INTEGER
from app.models import Job
from app.settings import Settings

blp = Blueprint(
    "audit",
    __name__,
    url_prefix="/v1/audit",
    description="Who did what: a chain of entries, each holding the hash of the one before.",
)

NDJSON = "application/x-ndjson"

_SECONDS = 10.0
# A verification holds a connection and much of Python's one lock: others wait for both.
_room = BoundedSemaphore(2)

_HASH: dict[str, Any] = {"pattern": "^[0-9a-f]{64}$"}
_WHOLE = (
    "Query parameter: an export is the whole chain; leave this out, or ask for application/json."
)


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
    """What to verify. Of a head that the caller kept, both `seq` and `hash` or none."""

    seq = fields.QueryInteger(1, MAX_INTEGER, metadata={"description": "`head.seq` of then."})
    hash = fields.Text(
        64,
        validate=validate.Regexp(r"[0-9a-f]{64}\Z", error="Send 64 lower-case hex digits."),
        metadata={"description": "`head.hash` of then.", **_HASH},
    )
    chain = fields.Text(
        64,
        validate=validate.Regexp(r"[0-9a-f]{64}\Z", error="Send 64 lower-case hex digits."),
        metadata={"description": "`chain` of then: the chain must still be called so.", **_HASH},
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
        if "since" in data and data.get("full") == Full.YES:
            raise ValidationError("Either all that there is, or since the newest anchor.", "full")


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
        allow_none=True,
        max_items=3,
        metadata={"description": "What vouches for the newest head; null with `since`."},
    )
    timestamps = fields.Integer(0, MAX_INTEGER, required=True, allow_none=True)
    timestamps_unverified = fields.Integer(
        0,
        MAX_INTEGER,
        required=True,
        allow_none=True,
        metadata={"description": "Those whose authority is unknown here: they vouch for nothing."},
    )
    newest_timestamp = fields.Object(NewestTimestampSchema, required=True, allow_none=True)
    cosignatures = fields.Integer(0, MAX_INTEGER, required=True, allow_none=True)


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
    verified_at = fields.Time(
        required=True, metadata={"description": "The moment whose rows were read."}
    )
    chain = fields.Text(
        64, required=True, metadata={"description": "The chain's name in the log.", **_HASH}
    )
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
        allow_none=True,
        metadata={
            "description": "Chains in the log that no tenant of this service has any more;"
            " null where no daily run has looked."
        },
    )
    unknown_chains_at = fields.Time(required=True, allow_none=True)
    since = fields.Object(SinceSchema)
    leaves_read_from = fields.Integer(
        0, MAX_INTEGER, metadata={"description": "With `since`: the first leaf that was read."}
    )


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(AuditArgs, location="query")
@blp.response(200, EntryPageSchema)
@blp.alt_response(409, "CONFLICT")
@blp.doc(responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}})
def list_entries(args: dict[str, Any]) -> Response:
    """List the audit chain, or export it.

    Newest first, or oldest with `order=asc`. With `Accept: application/x-ndjson` the whole chain
    streams, oldest first, one entry a line; it ends with the entry that records this export and
    then a line of `type` `trailer`. Without that line an export is incomplete.
    """
    if request.accept_mimetypes.best_match(["application/json", NDJSON]) == NDJSON:
        return _export()
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
    longer than some seconds, or finds two others at it, is done by a job: 202, with the job's
    `Location`. Who asks the same within a minute of its end gets what it found (`verified_at`).
    """
    asked = audit_jobs.asked(args)
    with transaction() as session:
        job = audit_jobs.same(session, caller().tenant_id, asked)
        if job is not None and job.finished_at is None:
            return _accepted(job)
    if job is not None:
        return answer(audit_jobs.answered(job))
    found = _verified(asked)
    if found is None:
        with transaction() as session:
            return _accepted(audit_jobs.enqueue(session, caller().tenant_id, asked))
    return answer(found)


def _verified(asked: Asked) -> dict[str, Any] | None:
    """Verify at once; None if there is no room or no time for it."""
    if not _room.acquire(blocking=False):
        return None
    try:
        return services().verifier.verify(caller().tenant_id, asked, _SECONDS)
    except TakesLonger:
        return None
    finally:
        _room.release()


def _accepted(job: Job) -> Response:
    shown = job_control.represent(job)
    return answer(shown, 202, {"Location": f"/v1/jobs/{shown['id']}", "Retry-After": "5"})


def _export() -> Response:
    if request.args:
        raise Invalid(*(FieldError(parsing.pointer(name), _WHOLE) for name in request.args))
    # Its own entry is committed before the first byte leaves: no export without one.
    with transaction() as session:
        end = audit_export.begin(session, caller())
    lines = _lines(services().database, caller(), end, services().settings)
    # Before the first byte leaves, what is wrong with the chain can still be answered as a problem.
    first = next(lines)
    return Response(chain([first], lines), content_type=NDJSON)


def _lines(database: Database, reader: Caller, end: Head, settings: Settings) -> Iterator[bytes]:
    for after in range(0, end.seq, audit_export.PART):
        with database.transaction(reader.tenant_id) as session:
            entries = audit_export.part(session, reader, after, end)
        yield b"".join(map(audit_export.line, entries))
    with database.transaction(reader.tenant_id, snapshot=True) as session:
        trailer = audit_export.trailer(
            session, reader.tenant_id, end, settings.witness_policy, settings.master_keys
        )
    yield trailer
