"""Digests over HTTP: what was sent, when, and how many findings it listed."""

from typing import Any

from flask import Response

from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.services import caller, services, transaction
from app.core.callers import Role
from app.core.digests import digest_history, sending
from app.core.digests.digest_history import DigestSchema, NextSchema
from app.models import Digest
from app.schemas import fields

blp = Blueprint(
    "digests",
    __name__,
    url_prefix="/v1/digests",
    description="The mails that list new findings: at most one in 24 hours.",
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
        settle = services().settings.digest_settle
        coming = digest_history.next_digest(session, caller().tenant_id, settle)
        return page(
            args,
            lambda *where: sending.rows(session, Digest, caller().tenant_id, *where),
            digest_history.represent,
            beside=lambda _: {"next": coming},
        )
