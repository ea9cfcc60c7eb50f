"""Findings over HTTP."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http import promises
from app.api.http.answers import answer, answer_written
from app.api.http.auth import confirmed_caller, requires
from app.api.http.documentation import Blueprint, takes_gzip
from app.api.http.idempotency import sent_request
from app.api.http.paging import FeedArgs, PageArgs, filters, page, page_schema
from app.api.http.promises import may_promise
from app.api.http.services import caller, prefers_replica, services, transaction
from app.core import feeds, finding_search, findings
from app.core.callers import Role
from app.core.findings import FindingSchema, NewFinding
from app.core.records import finding_expiry
from app.core.records.finding_expiry import ExpiredFindingsSchema
from app.models import Finding
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Blueprint(
    "findings", __name__, url_prefix="/v1/findings", description="Reports on what an agent did."
)

MAX_BATCH = 1000
# Some forty findings.
_ON_LOOP = 16 * 1024


class NewFindingSchema(Schema):
    """A finding to add; it names its session, or a record of that session, or both."""

    session_id = fields.Id("ses")
    record_id = fields.Id(
        "rec", description="The record it is about; its session is the finding's."
    )
    rule = FindingSchema.field("rule", required=True)
    severity = FindingSchema.field("severity", required=True)
    title = FindingSchema.field("title", required=True)
    detail = FindingSchema.field("detail")
    data = FindingSchema.field("data", allow_none=False)

    def check(self, sent: Mapping[str, Any]) -> None:
        """Refuse a finding without a session and a record."""
        if "session_id" not in sent and "record_id" not in sent:
            raise ValidationError("Send session_id, or record_id.", "session_id")


class NewFindingsSchema(Schema):
    """Findings to add, all or none."""

    findings = fields.Items(
        fields.Object(NewFindingSchema), required=True, min_items=1, max_items=MAX_BATCH
    )


class FindingsSchema(AnswerSchema):
    """The findings added, in the order they were sent."""

    data = fields.Items(fields.Object(FindingSchema), max_items=MAX_BATCH)


FindingPageSchema = page_schema(FindingSchema)


class FindingArgs(FeedArgs):
    """Filters of the list of findings; all given must match."""

    q = fields.Text(
        1000,
        description="Words, which must all be in title, rule and detail together, ignoring "
        'case; words in "quotes" match as a phrase.',
        example="refund above-limit",
    )
    session_id = fields.Id("ses")
    record_id = fields.Id("rec")
    severity = fields.Choice(findings.Severity)
    source = fields.Choice(findings.Source)
    rule = fields.Text(200)
    digest_id = fields.Id("dig", description="The findings of one digest.")


@blp.route("", methods=["POST"])
@may_promise(_ON_LOOP)
@requires(Role.WRITE, confirmed_by_view=True)
@blp.arguments(NewFindingSchema)
@blp.response(201, FindingSchema)
@blp.alt_response(404, "NOT_FOUND")
def create(body: dict[str, Any]) -> Response:
    """Add a finding.

    Emits `finding.created`. The session may be open or completed.
    """
    return added([body], is_batch=False)


@blp.route("/batch", methods=["POST"])
@may_promise(_ON_LOOP)
@requires(Role.WRITE, confirmed_by_view=True)
@takes_gzip
@blp.arguments(NewFindingsSchema)
@blp.response(201, FindingsSchema)
@blp.alt_response(404, "NOT_FOUND")
def create_batch(body: dict[str, Any]) -> Response:
    """Add up to 1000 findings, all or none.

    Emits one `finding.created` each. They may belong to several sessions.
    """
    return added(body["findings"], is_batch=True)


def added(sent: Sequence[Mapping[str, Any]], *, is_batch: bool) -> Response:
    """Answer a POST of findings, which are stored with those that arrive meanwhile."""
    found = promises.outcome()
    if found is None:
        new = [NewFinding(**{"session_id": None, **finding}) for finding in sent]
        post = findings.Posted(findings.Submission(caller(), new), is_batch, sent_request())
        if promises.on_loop():
            return promises.promise(partial(services().findings.join, post))
        found = services().findings.submit(post)
    if not found.replayed:
        return answer_written(found.body, found.status)
    # No statement has confirmed the caller of what was stored before.
    confirmed_caller()
    return answer_written(found.body, found.status, {"Idempotent-Replayed": "true"})


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(FindingArgs, location="query")
@blp.response(200, FindingPageSchema)
@prefers_replica
def list_findings(args: dict[str, Any]) -> Response:
    """Search findings, or list them; newest first.

    A page may hold fewer findings than `limit` (of a search, even none) although more follow:
    continue while there is a `next_cursor`.
    """
    with transaction() as session:
        return page(args, lambda *where: fetch(session, args, *where), findings.represent)


def fetch(
    session: Session, args: Mapping[str, Any], before: UUID | None, limit: int
) -> Sequence[Finding]:
    """Return the findings that `FindingArgs` selects."""
    others = {name: value for name, value in filters(args).items() if name != "q"}
    if "q" not in args:
        found = findings.rows(session, caller(), others, before, limit)
    else:
        found = finding_search.rows(session, caller(), args["q"], others, before, limit)
    return feeds.fitting(found, lambda each: each.data_json)


class ExpiredArgs(PageArgs):
    """The filter of the counts of expired findings."""

    rule = fields.Text(200)


@blp.route("/expired", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.arguments(ExpiredArgs, location="query")
@blp.response(200, page_schema(ExpiredFindingsSchema))
def list_expired(args: dict[str, Any]) -> Response:
    """Count the findings that have expired, by the day on which they were created

    A service may be set to delete findings after some days (`FINDINGS_DAYS`). Their counts stay.
    """
    tenant_id = caller().tenant_id
    with transaction() as session:
        return page(
            args,
            lambda *where: finding_expiry.counts(session, tenant_id, args.get("rule"), *where),
            finding_expiry.represent,
            lambda row: int(row["day"].toordinal()),
        )


@blp.route("/<finding_id>", methods=["GET"])
@requires(Role.READ)
@blp.response(200, FindingSchema)
def read(finding_id: UUID | None) -> Response:
    """Read a finding."""
    with transaction() as session:
        found = findings.find(session, caller(), finding_id)
        return answer(findings.represent(found))
