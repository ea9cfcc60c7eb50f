"""Share links over HTTP: minted and revoked by an administrator, listed without their tokens."""

from datetime import datetime, timedelta
from typing import Any

from flask import Response

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import AnswerSchema, Schema
from app.api.http.responses.json_responses import no_content
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.core.callers import Role
from app.core.records import share_links
from app.database import database_now

blp = Blueprint(
    "share_links",
    __name__,
    url_prefix="/v1/records/<record_id>/share-links",
    description="Links that open one record, with all its exports, without a key.",
)

_DAY = 86_400
_LONGEST = 30 * _DAY
_LIFETIME: dict[str, Any] = {"description": "The lifetime of the link.", "default": _DAY}


class NewShareLinkSchema(Schema):
    """A share link to create."""

    expires_in_seconds = fields.Integer(1, _LONGEST, load_default=_DAY, metadata=_LIFETIME)


class ShareLinkSchema(AnswerSchema):
    """A share link, without its token."""

    id = fields.Id("shr")
    record_id = fields.Id("rec")
    expires_in_seconds = fields.Integer(1, _LONGEST, description="The lifetime, as requested.")
    expires_at = fields.Time()
    active = fields.Boolean(description="False once it is revoked or has expired.")
    created_at = fields.Time()
    created_by = fields.Id("key")
    revoked_at = fields.Time(allow_none=True)
    opened = fields.Count(
        description="Requests that the link opened: page and exports, by people or robots.",
    )
    last_opened_at = fields.Time(allow_none=True)


class MintedShareLinkSchema(ShareLinkSchema):
    """A share link with its URL, which is the credential and is shown only once."""

    url = fields.Text(2000)


ShareLinkPageSchema = page_schema(ShareLinkSchema)


@blp.route("", methods=["POST"])
@requires(Role.ADMIN)
@blp.arguments(NewShareLinkSchema)
@blp.response(201, MintedShareLinkSchema)
def mint(body: dict[str, Any], record_id: str) -> Response:
    """Create a share link

    Its `url` is shown only once. It opens this record alone, with all its exports, without a key. A
    record has at most 100 active links.
    """
    lifetime = timedelta(seconds=body["expires_in_seconds"])
    asked_for = ids.parse("rec", record_id)
    with transaction() as session:
        base_url = services().settings.base_url
        return once(
            session, 201, lambda: share_links.mint(session, caller(), asked_for, lifetime, base_url)
        )


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(PageArgs, location="query")
@blp.response(200, ShareLinkPageSchema)
def list_share_links(args: dict[str, Any], record_id: str) -> Response:
    """List a record's share links, newest first"""
    asked_for = ids.parse("rec", record_id)
    with transaction() as session:
        now: datetime = database_now(session)
        return page(
            args,
            lambda *where: share_links.rows(session, caller(), asked_for, *where),
            lambda row: share_links.represent(row, now),
        )


@blp.route("/<share_link_id>", methods=["DELETE"])
@requires(Role.ADMIN)
@blp.response(204)
def revoke(record_id: str, share_link_id: str) -> Response:
    """Revoke a share link, at once and for good

    Revoking it again changes nothing and answers 204 too.
    """
    with transaction() as session:
        share_links.revoke(
            session, caller(), ids.parse("rec", record_id), ids.parse("shr", share_link_id)
        )
    return no_content()
