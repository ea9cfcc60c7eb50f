"""Digests over HTTP: what was sent, when, and how many findings it listed."""

import enum
from typing import Any

from flask import Response

from app.api.http.access.auth import caller, requires
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import AnswerSchema
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
    CANCELLED = "cancelled"


class DigestSchema(AnswerSchema):
    """One digest, without the address."""

    id = fields.Id("dig")
    status = fields.Choice(
        Status,
        description="`uncertain`: the mail server's answer was lost, and the next digest "
        "lists the same again. `cancelled`: the address was cleared before it was sent.",
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
    error = fields.Text(1000, allow_none=True)
    claimed_at = fields.Time()
    data_at = fields.Time(
        allow_none=True, description="From then on the mail server may have accepted the mail."
    )
    sent_at = fields.Time(allow_none=True)


DigestPageSchema = page_schema(DigestSchema)


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(PageArgs, location="query")
@blp.response(200, DigestPageSchema)
def list_digests(args: dict[str, Any]) -> Response:
    """List digests, newest first"""
    with transaction() as session:
        return page(
            args,
            lambda before, limit: history.rows(session, caller().tenant_id, before, limit),
            history.represent,
        )
