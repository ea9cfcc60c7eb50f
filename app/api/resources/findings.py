"""Findings over HTTP."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http import promises
from app.api.http.answers import answer_written
from app.api.http.auth import READ, READ_TENANT, WRITE_UNCONFIRMED, confirmed_caller
from app.api.http.documentation import takes_gzip
from app.api.http.idempotency import sent_request
from app.api.http.paging import FeedArgs, PageArgs, filters
from app.api.http.promises import may_promise
from app.api.http.routes import Routes
from app.api.http.services import caller, prefers_replica, services, transaction
from app.core import feeds, finding_search, findings
from app.core.findings import FindingSchema, NewFinding
from app.core.records import finding_expiry
from app.core.records.finding_expiry import ExpiredFindingsSchema
from app.models import Finding
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes(
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


@blp.serves("POST", WRITE_UNCONFIRMED, FindingSchema, 201, takes=NewFindingSchema, errors=(404,))
@may_promise(_ON_LOOP)
def create(body: dict[str, Any]) -> Response:
    """Add a finding.

    Emits `finding.created`. The session may be open or completed.
    """
    return added([body], is_batch=False)


@blp.serves(
    "POST /batch", WRITE_UNCONFIRMED, FindingsSchema, 201, takes=NewFindingsSchema, errors=(404,)
)
@may_promise(_ON_LOOP)
@takes_gzip
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


@blp.lists("", READ, FindingSchema, FindingArgs, around=(prefers_replica,))
def list_findings(
    session: Session, args: Mapping[str, Any], before: UUID | None, limit: int
) -> Sequence[Finding]:
    """Search findings, or list them; newest first.

    A page may hold fewer findings than `limit` (of a search, even none) although more follow:
    continue while there is a `next_cursor`.
    """
    others = {name: value for name, value in filters(args).items() if name != "q"}
    if "q" not in args:
        found = findings.rows(session, caller(), others, before, limit)
    else:
        found = finding_search.rows(session, caller(), args["q"], others, before, limit)
    return feeds.fitting(found, lambda each: each.data_json)


class ExpiredArgs(PageArgs):
    """The filter of the counts of expired findings."""

    rule = fields.Text(200)


@blp.lists(
    "/expired",
    READ_TENANT,
    ExpiredFindingsSchema,
    ExpiredArgs,
    represent=finding_expiry.represent,
    position=lambda row: int(row["day"].toordinal()),
    endpoint="list_expired",
)
def list_expired(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """Count the findings that have expired, by the day on which they were created

    A service may be set to delete findings after some days (`FINDINGS_DAYS`). Their counts stay.
    """
    return finding_expiry.counts(session, caller().tenant_id, args.get("rule"), *where)


@blp.serves("GET /<finding_id>", READ, FindingSchema)
def read(finding_id: UUID | None) -> dict[str, Any]:
    """Read a finding."""
    with transaction() as session:
        return findings.represent(findings.find(session, caller(), finding_id))
