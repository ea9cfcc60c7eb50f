"""Digests over HTTP: what was sent, when, and how many findings it listed."""

import enum
from typing import Any

from flask import Response

from app.api.http.access.auth import caller, requires
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import AnswerSchema
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.core.callers import Role
from app.core.digests import history

blp = Blueprint(
    "digests",
    __name__,
    url_prefix="/v1/digests",
    description="The mails that list new findings: at most one in 24 hours.",
)


class Status(enum.StrEnum):
    """The status of a digest."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    CONTENT_REFUSED = "content_refused"
    RECIPIENT_REFUSED = "recipient_refused"
    CANCELLED = "cancelled"


class DigestSchema(AnswerSchema):
    """One digest, without the address."""

    id = fields.Id("dig")
    status = fields.Choice(
        Status,
        description="`uncertain`: the mail server's answer was lost, and the next digest "
        "lists the same again. `content_refused`: the mail server refused it for good, also "
        "`brief`; the next digest, a day later, lists the same again. `recipient_refused`: the "
        "mail server refuses the address for good; it is tried once a day, and at once when the "
        "address is changed. `cancelled`: the address was cleared before it was sent.",
    )
    findings = fields.Count(
        allow_none=True,
        description="How many new findings it lists; null until they are selected. "
        "`GET /v1/findings?digest_id=` lists them.",
    )
    repeats = fields.Id(
        "dig", allow_none=True, description="The `uncertain` digest whose findings it repeats."
    )
    refusals = fields.Count(description="How often the mail server did not answer or refused it.")
    error = fields.Text(1000, allow_none=True, description="What the last attempt failed of.")
    said = fields.Text(
        1000,
        allow_none=True,
        description="The mail server's own words with `error`; the address in them is left out.",
    )
    brief = fields.Boolean(
        description="It has numbers, severities and links only, because the mail server refused it "
        "with the findings' titles."
    )
    claimed_at = fields.Time()
    data_at = fields.Time(
        allow_none=True, description="From then on the mail server may have accepted the mail."
    )
    sent_at = fields.Time(allow_none=True)


class NextSchema(AnswerSchema):
    """The next digest of the tenant."""

    to = fields.Text(254, description="The address that it goes to.")
    digest_id = fields.Id(
        "dig", allow_none=True, description="The digest, once it is begun; null before."
    )
    due_at = fields.Time(
        allow_none=True,
        description="When it is sent, or tried again; null while no finding waits for it.",
    )
    not_before = fields.Time(
        allow_none=True, description="The end of the day after the last mail; null when it is over."
    )


DigestPageSchema = page_schema(
    DigestSchema,
    next=fields.Object(
        NextSchema, allow_none=True, description="The next digest; null without an address."
    ),
)


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(PageArgs, location="query")
@blp.response(200, DigestPageSchema)
def list_digests(args: dict[str, Any]) -> Response:
    """List digests, newest first, and say when the next is due"""
    with transaction() as session:
        coming = history.next_digest(session, caller().tenant_id, services().settings.digest_settle)
        return page(
            args,
            lambda before, limit: history.rows(session, caller().tenant_id, before, limit),
            history.represent,
            beside=lambda _: {"next": history.represent_next(coming)},
        )
