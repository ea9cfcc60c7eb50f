"""Share links over HTTP: minted and revoked by an administrator, listed without their tokens."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.auth import ADMIN, READ
from app.api.http.idempotency import once
from app.api.http.routes import PAIRS, Routes
from app.api.http.services import caller, services, transaction
from app.core.records import share_links
from app.core.records.share_links import ShareLinkSchema
from app.database import database_now
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes(
    "share_links",
    __name__,
    url_prefix="/v1/records/<record_id>/share-links",
    description="Links that open one record, with all its exports, without a key.",
)


class NewShareLinkSchema(Schema):
    """A share link to create."""

    expires_in_seconds = fields.Integer(
        1,
        share_links.MAX_LIFETIME,
        load_default=share_links.DEFAULT_LIFETIME,
        description="The lifetime of the link.",
        metadata={"default": share_links.DEFAULT_LIFETIME},
    )


class MintedShareLinkSchema(ShareLinkSchema):
    """A share link with its URL, which is the credential and is shown only once."""

    url = fields.Text(2000)


@blp.serves("POST", ADMIN, MintedShareLinkSchema, 201, takes=NewShareLinkSchema)
def mint(body: dict[str, Any], record_id: UUID | None) -> Response:
    """Create a share link

    Its `url` is shown only once. It opens this record alone, with all its exports, without a key. A
    record has at most 100 active links.
    """
    lifetime, base_url = body["expires_in_seconds"], services().settings.base_url
    return once(
        201, lambda session: share_links.mint(session, caller(), record_id, lifetime, base_url)
    )


@blp.lists("", READ, ShareLinkSchema, **PAIRS)
def list_share_links(
    session: Session, args: Mapping[str, Any], *where: Any, record_id: UUID | None
) -> list[tuple[UUID, dict[str, Any]]]:
    """List a record's share links, newest first"""
    now = database_now(session)
    rows = share_links.rows(session, caller(), record_id, *where)
    return [(row.id, share_links.represent(row, now)) for row in rows]


@blp.serves("DELETE /<share_link_id>", ADMIN, None, 204)
def revoke(record_id: UUID | None, share_link_id: UUID | None) -> None:
    """Revoke a share link, at once and for good

    Revoking it again changes nothing and answers 204 too.
    """
    with transaction() as session:
        share_links.revoke(session, caller(), record_id, share_link_id)
