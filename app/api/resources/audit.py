"""The audit chain over HTTP: in pages, exported as NDJSON, and verified."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from threading import BoundedSemaphore
from types import MappingProxyType
from typing import Any
from uuid import UUID

from flask import Response, request
from sqlalchemy.orm import Session

from app import ids, metrics
from app.api.http import admission, parsing
from app.api.http.admission import truncated_stream
from app.api.http.answers import answer
from app.api.http.auth import READ_TENANT
from app.api.http.paging import PageArgs, filters, page, page_schema
from app.api.http.routes import Routes
from app.api.http.services import Services, caller, reads_objects, request_id, services, transaction
from app.api.resources.verification import HASH, VerificationSchema, VerifyArgs
from app.core.audit import archive, view
from app.core.callers import OPERATOR, SYSTEM, UNSUBSCRIBER, Caller, Role
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.keys import keys
from app.core.verification import alerts, export
from app.core.verification import daily as verification_jobs
from app.core.verification.export import Layout, Range
from app.errors import AuditChainBroken, FieldError, Invalid
from app.ledger.hash_chain import Outcome
from app.models import AuditEntry, Job
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes(
    "audit",
    __name__,
    url_prefix="/v1/audit",
    description="The audit chain: entries that each hold the hash of the entry before.",
)

NDJSON = "application/x-ndjson"

_WHOLE = (
    "Query parameter: an export is the chain between two moments; leave this out, or ask for "
    "application/json."
)
_PARAMETERS = frozenset({"since", "until", "layout"})

# A verification holds a connection and, for much of its time, the GIL: others wait for both.
_bulkhead = BoundedSemaphore(2)


class RangeArgs(Schema):
    """What an export takes."""

    layout = fields.Choice(
        Layout, description="Of an export's lines; `chain`: canonical JSON, as it was hashed."
    )
    since = fields.Time(description="Appended at this moment or later.")
    until = fields.Time(description="Appended before this moment.")


class AuditArgs(PageArgs, RangeArgs):
    """Filters of the audit chain; all given must match."""

    order = fields.Choice(view.Order, load_default=view.Order.DESCENDING)
    actor = party_fields.Party(
        (SYSTEM.id, OPERATOR.id, UNSUBSCRIBER.id),
        # An e-mail address.
        r"[^@ ]+@[^@ ]+$",
        description="The id of the key, the person or the share link, or the name of another "
        "actor; a person's e-mail address too.",
        example="key_0192f0c1a2b37c4d8e5f60718293a4b5",
    )
    # Routes have paths, and generations of the log origins.
    target = party_fields.Party(
        pattern=r".*[/.]",
        description="The id of the object; of a refusal, the path of the route; of a succession of "
        "the log, the new origin.",
        example="whk_0192f0c1a2b37c4d8e5f60718293a4b5",
    )
    action = fields.Text(100, description="The action, or how it begins.", example="webhook.")
    outcome = fields.Choice(
        Outcome, description="Entries from before they had an outcome match none."
    )


class PersonSchema(AnswerSchema):
    """A person whom an OpenID provider signed in: `issuer` and `subject` name them."""

    issuer = fields.Text(2000, example="https://id.example.com")
    subject = fields.Text(255, example="248289761001")
    name = fields.Text(200, example="Ada Lovelace")
    email = fields.Text(254, allow_none=True, example="ada@example.com")


class ActorSchema(AnswerSchema):
    """The actor of an entry; `person` where its `type` is `person`."""

    optional = ("role", "person")

    type = fields.Text(50)
    id = fields.Text(200)
    role = fields.Choice(Role)
    person = fields.Object(PersonSchema)


class TargetSchema(AnswerSchema):
    """The object of an entry."""

    type = fields.Text(50)
    id = fields.Text(200)


class EntrySchema(AnswerSchema):
    """An entry. `hash` is the SHA-256 of the canonical JSON (RFC 8785) of all other members.

    `origin` is the address that the request came from, null for the service's own acts. Entries
    from before they had `outcome` and `origin` have neither.
    """

    optional = ("outcome", "origin")

    seq = fields.Count(1)
    at = fields.Time()
    tenant_id = fields.Id("ten")
    actor = fields.Object(ActorSchema)
    action = fields.Text(100)
    target = fields.Object(TargetSchema)
    details = fields.JsonObject(parsing.MAX_BODY)
    request_id = fields.Text(128, allow_none=True)
    outcome = fields.Choice(Outcome)
    origin = fields.Text(50, allow_none=True)
    prev_hash = fields.Text(64, metadata=HASH)
    hash = fields.Text(64, metadata=HASH)


EntryPageSchema = page_schema(
    EntrySchema,
    key_names=fields.JsonObject(
        parsing.MAX_BODY,
        description="The name of each key or person on this page, actor or target, by its id. "
        "It stands outside the entries, because their hashes cover all their members.",
        example={"key_0192f0c1a2b37c4d8e5f60718293a4b5": "deploy"},
        metadata={"additionalProperties": {"type": "string"}},
    ),
)


def entries(
    session: Session, args: Mapping[str, Any], after: int | None, limit: int
) -> Sequence[AuditEntry]:
    """Return the entries that `AuditArgs` selects, archived ones with their bodies."""
    found = view.rows(session, caller(), filters(args), after, limit)
    return archive.filled(session, services().settings.master_keys, caller().tenant_id, found)


@blp.serves(
    "GET",
    READ_TENANT,
    EntryPageSchema,
    args=AuditArgs,
    errors=(409,),
    endpoint="list",
    around=(reads_objects,),
)
@blp.doc(responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}})
def list_entries(args: dict[str, Any]) -> Response:
    """List the audit chain, or export it.

    Newest first, or oldest with `order=asc`. With `Accept: application/x-ndjson` the chain streams,
    oldest first, one entry a line, from `since` and up to `until`; without `until` it ends with the
    entry that records this export. The last line is of `type` `trailer`: without it an export is
    incomplete. With `layout=events` each line is a flat event for readers of logs. Other parameters
    are 422 then.
    """
    if _is_export_asked_for():
        return export_answer(args)
    if "layout" in args:
        text = "Query parameter: Only with Accept: application/x-ndjson."
        raise Invalid(FieldError("/layout", text))
    with transaction() as session:
        return page(
            args,
            lambda *where: entries(session, args, *where),
            view.represent,
            position=lambda entry: entry.seq,
            beside=lambda entries: {"key_names": key_names(session, entries)},
        )


@blp.serves(
    "GET /verify",
    READ_TENANT,
    VerificationSchema,
    args=VerifyArgs,
    errors=(409,),
    also={202: JobSchema},
)
def verify(args: dict[str, Any]) -> Response:
    """Verify the audit chain.

    Recomputes every hash and link in one snapshot, and proves that the transparency log holds each
    of its anchors; the log's newest leaves are compared with the chain as well, all of them by the
    daily verification. The log is compared with its signed checkpoint, its newest timestamp and its
    head outside the database. With `seq` and `hash` of a head that you kept, the chain must contain
    it too; only you are told if it does not. `since=anchor` begins at the newest anchor that the
    log proves, and reads only later entries. A broken chain is answered 409 with the first bad
    `seq`, the expected and the found value; a database older than its log 409 `log-rolled-back`.
    For a long chain, or while two others are verified, a job verifies: 202 with its `Location`. Its
    `progress` is the report in the end; a break is its `error`.
    """
    found = verify_now(args)
    return _accepted(found) if isinstance(found, Job) else answer(found)


@reads_objects
def verify_now(args: Mapping[str, Any]) -> dict[str, Any] | Job:
    """Verify the caller's chain as `VerifyArgs` asks; return the report, or the job that verifies.

    Raises `AuditChainBroken`, `LogHalted`, and `Busy` where too many different jobs are open.
    """
    options, tenant_id = verification_jobs.asked(args), caller().tenant_id
    with transaction() as session:
        is_long = verification_jobs.is_long(session, tenant_id, options)
    if is_long or not _bulkhead.acquire(blocking=False):
        with transaction() as session:
            return verification_jobs.enqueue(session, tenant_id, args)
    try:
        found = services().verifier.verify(tenant_id, options)
    finally:
        _bulkhead.release()
    # It may have taken some seconds.
    admission.again()
    return found


def key_names(session: Session, entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the names of the keys and people that entries name, by their ids."""
    named = [each[part] for each in entries for part in ("actor", "target")]
    wanted = {ids.parse(prefix, each["id"]) for each in named for prefix in ("key", "usr")}
    return keys.names(session, caller().tenant_id, filter(None, wanted))


def _accepted(job: Job) -> Response:
    shown = job_control.represent(job)
    return answer(shown, 202, {"Location": f"/v1/jobs/{shown['id']}", "Retry-After": "5"})


def _is_export_asked_for() -> bool:
    """Return whether the request prefers the chain (NDJSON) to a page of it (JSON)."""
    return request.accept_mimetypes.best_match(["application/json", NDJSON]) == NDJSON


def export_answer(args: Mapping[str, Any] = MappingProxyType({})) -> Response:
    """Answer the caller's chain, from `since` to `until`, and append an entry that records that.

    Raises `Invalid` for another parameter, and `AuditChainBroken` if the first part is broken.
    """
    wrong = sorted(request.args.keys() - _PARAMETERS)
    if wrong:
        raise Invalid(*(FieldError(parsing.pointer(name), _WHOLE) for name in wrong))
    asked = {name: args[name] for name in _PARAMETERS & args.keys()}
    if "since" in asked and "until" in asked and asked["since"] >= asked["until"]:
        text = "Query parameter: send a moment after since."
        raise Invalid(FieldError("/until", text))
    layout = Layout(asked.get("layout", Layout.CHAIN))
    if request.method == "HEAD":
        # No entry is sent, so nothing was exported and the chain has no entry of it.
        return Response(content_type=NDJSON)
    # Its own entry is committed before the first byte leaves: no export without one.
    with transaction() as session:
        told = export.begin(session, caller(), **asked)
    here = services()
    lines = _lines(here, caller(), told, layout)
    # Before the first byte leaves, what is wrong with the chain can still be answered as a problem.
    first = next(lines)
    whole = chain([first], lines)
    report = partial(_told, here, caller().tenant_id)
    return Response(truncated_stream(whole, request_id(), report), content_type=NDJSON)


def _lines(here: Services, reader: Caller, told: Range, layout: Layout) -> Iterator[bytes]:
    last = told.last.seq

    def read(after: int) -> Sequence[AuditEntry]:
        with here.database.transaction(reader.tenant_id) as session:
            found = export.part(session, reader, after, last)
            keys = here.settings.master_keys
            return archive.filled(session, keys, reader.tenant_id, found)

    for after in range(told.after.seq, last, export.PART):
        entries = here.fetching(partial(read, after))
        yield b"".join(export.line(entry, layout) for entry in entries)
    with here.database.transaction(reader.tenant_id, snapshot=True) as session:
        trailer = export.trailer(session, reader.tenant_id, told, layout)
    yield trailer


def _told(here: Services, tenant_id: UUID, error: Exception) -> bool:
    """Count and record a broken chain that the export met; return whether the error was one."""
    if isinstance(error, AuditChainBroken):
        here.tally.add(metrics.CHAINS_BROKEN)
        alerts.report_break(here.database, tenant_id, error)
    return isinstance(error, AuditChainBroken)
