"""API keys over HTTP."""

import enum
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError

from app import ids
from app.api.http.answers import answer, no_content
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.services import caller, transaction
from app.core.callers import Pin, Role
from app.core.keys import keys
from app.core.keys.keys import KeySchema, PinSchema
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint("keys", __name__, url_prefix="/v1/keys", description="API keys: roles and pins.")


class ExpiresIn(enum.StrEnum):
    """Common lifetimes of keys."""

    HOUR = "1h"
    DAY = "1d"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER = "90d"
    YEAR = "365d"

    @property
    def term(self) -> timedelta:
        """The lifetime."""
        unit = "hours" if self.endswith("h") else "days"
        return timedelta(**{unit: int(self[:-1])})


class NewKeySchema(Schema):
    """A key to mint."""

    name = fields.Text(200, required=True, example="the auditor's")
    role = fields.Choice(Role, required=True)
    pin = fields.Object(PinSchema, allow_none=True, load_default=None)
    expires_at = fields.Time(
        allow_none=True,
        load_default=None,
        description="In the future, and no later than the minting key's own. Null: the minting "
        "key's own, or never if it never expires.",
    )
    expires_in = fields.Choice(
        ExpiresIn, description="The lifetime from now, in place of `expires_at`."
    )

    def check(self, sent: Mapping[str, Any]) -> None:
        """Refuse `expires_in` beside `expires_at`."""
        if "expires_in" in sent and sent.get("expires_at") is not None:
            raise ValidationError("Send expires_at or expires_in.", "expires_in")


class OwnKeySchema(KeySchema):
    """The key in use, with its tenant."""

    tenant_id = fields.Id("ten")


class MintedKeySchema(KeySchema):
    """A key with its text, which is shown only once."""

    key = fields.Text(50, metadata={"pattern": "^svc_[0-9A-Za-z]{46}$"})


KeyPageSchema = page_schema(KeySchema)


class KeyArgs(PageArgs):
    """The filter of the list of keys."""

    q = fields.Text(1000, description="Words or parts of them, all in its name, in any case.")


@blp.route("", methods=["POST"])
@requires(Role.ADMIN)
@blp.arguments(NewKeySchema)
@blp.response(201, MintedKeySchema)
def mint(body: dict[str, Any]) -> Response:
    """Mint a key.

    The text in `key` is shown only once. A key mints no role above its own, a pinned key only keys
    with its own pin, and a key that expires no key that expires later.
    """
    wanted = new_key(body)
    return once(201, lambda session: keys.mint(session, caller(), wanted))


def new_key(body: dict[str, Any]) -> keys.NewKey:
    """Return the key to mint, from the values that `NewKeySchema` has loaded."""
    pin = body["pin"] and Pin(**body["pin"])
    term = body["expires_in"].term if "expires_in" in body else None
    return keys.NewKey(body["name"], body["role"], pin, body["expires_at"], term)


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(KeyArgs, location="query")
@blp.response(200, KeyPageSchema)
def list_keys(args: dict[str, Any]) -> Response:
    """List keys, newest first.

    A pinned key sees itself and the keys with its pin. A page may hold fewer keys than `limit` (of
    a search, even none) although more follow: continue while there is a `next_cursor`.
    """
    with transaction() as session:
        return page(
            args,
            lambda before, limit: keys.rows(session, caller(), before, limit, args.get("q")),
            keys.represent,
        )


@blp.route("/self", methods=["GET"], endpoint="self")
@requires(Role.READ)
@blp.response(200, OwnKeySchema)
def own() -> Response:
    """Read the key in use, and its tenant."""
    with transaction() as session:
        shown = keys.represent(keys.own(session, caller()))
    return answer({**shown, "tenant_id": ids.text("ten", caller().tenant_id)})


class RevokeArgs(Schema):
    """Whether the keys made with this key are revoked too."""

    descendants = fields.QueryBoolean(
        load_default=False,
        description="Revoke also all keys that it minted, directly or through other keys.",
        metadata={"default": False},
    )


@blp.route("/<key_id>", methods=["DELETE"])
@requires(Role.ADMIN)
@blp.arguments(RevokeArgs, location="query")
@blp.response(204)
def revoke(args: dict[str, Any], key_id: UUID | None) -> Response:
    """Revoke a key, at once and for good.

    Revoking it again changes nothing and answers 204 too. The key in use cannot revoke itself, nor
    with `descendants` a key that it descends from.
    """
    with transaction() as session:
        keys.revoke(session, caller(), key_id, **args)
    return no_content()
