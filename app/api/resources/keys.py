"""API keys over HTTP."""

import enum
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app import ids
from app.api.http.auth import ADMIN, READ
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs
from app.api.http.routes import Routes
from app.api.http.services import caller, transaction
from app.core.callers import Pin, Role
from app.core.keys import keys
from app.core.keys.keys import KeySchema, PinSchema
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes("keys", __name__, url_prefix="/v1/keys", description="API keys: roles and pins.")


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


class KeyArgs(PageArgs):
    """The filter of the list of keys."""

    q = fields.Text(1000, description="Words or parts of them, all in its name, in any case.")


@blp.serves("POST", ADMIN, MintedKeySchema, 201, takes=NewKeySchema)
def mint(body: dict[str, Any]) -> Response:
    """Mint a key.

    The text in `key` is shown only once. A key mints no role above its own, a pinned key only keys
    with its own pin, and a key that expires no key that expires later.
    """
    return once(201, lambda session: keys.mint(session, caller(), new_key(body)))


def new_key(body: dict[str, Any]) -> keys.NewKey:
    """Return the key to mint, from the values that `NewKeySchema` has loaded."""
    pin = body["pin"] and Pin(**body["pin"])
    term = body["expires_in"].term if "expires_in" in body else None
    return keys.NewKey(body["name"], body["role"], pin, body["expires_at"], term)


@blp.lists("", READ, KeySchema, KeyArgs, represent=keys.represent)
def list_keys(
    session: Session, args: Mapping[str, Any], before: UUID | None, limit: int
) -> Sequence[Any]:
    """List keys, newest first.

    A pinned key sees itself and the keys with its pin. A page may hold fewer keys than `limit` (of
    a search, even none) although more follow: continue while there is a `next_cursor`.
    """
    return keys.rows(session, caller(), before, limit, args.get("q"))


@blp.serves("GET /self", READ, OwnKeySchema, endpoint="self")
def own() -> dict[str, Any]:
    """Read the key in use, and its tenant."""
    with transaction() as session:
        shown = keys.represent(keys.own(session, caller()))
        return {**shown, "tenant_id": ids.text("ten", caller().tenant_id)}


class RevokeArgs(Schema):
    """Whether the keys made with this key are revoked too."""

    descendants = fields.QueryBoolean(
        load_default=False,
        description="Revoke also all keys that it minted, directly or through other keys.",
        metadata={"default": False},
    )


@blp.serves("DELETE /<key_id>", ADMIN, None, 204, args=RevokeArgs)
def revoke(args: dict[str, Any], key_id: UUID | None) -> None:
    """Revoke a key, at once and for good.

    Revoking it again changes nothing and answers 204 too. The key in use cannot revoke itself, nor
    with `descendants` a key that it descends from.
    """
    with transaction() as session:
        keys.revoke(session, caller(), key_id, **args)
