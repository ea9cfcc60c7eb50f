"""Legal holds over HTTP: placed and released by an administrator, listed with their ends."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http.auth import ADMIN_TENANT, READ_TENANT
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, filters
from app.api.http.routes import Routes
from app.api.http.services import caller, transaction
from app.core.records import holds
from app.core.records.holds import HoldSchema, HoldStatus
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes(
    "holds",
    __name__,
    url_prefix="/v1/holds",
    description="Legal holds: while one stands, the content of its records does not expire.",
)

_ONE = "Send exactly one of record_id, session_id, agent_id, or since together with until."


class NewHoldSchema(Schema):
    """A hold to place: why, and on what."""

    reason = fields.Text(1000, required=True, example="Case 26-118, letter of 3 March")
    record_id = fields.Id("rec")
    session_id = fields.Id("ses", description="All of its records, later ones too.")
    agent_id = fields.Id("agt", description="All of its records, later ones too.")
    since = fields.Time(description="Records created at this moment or later, with `until`.")
    until = fields.Time(description="Records created before this moment, with `since`.")

    def check(self, sent: Mapping[str, Any]) -> None:
        """Require one scope."""
        given = sorted(name for name in ("record_id", "session_id", "agent_id") if name in sent)
        times = [name for name in ("since", "until") if name in sent]
        if len(given) + bool(times) != 1:
            raise ValidationError(_ONE, (given[1:] or times or ["record_id"])[0])
        if len(times) == 1:
            missing = "until" if times == ["since"] else "since"
            raise ValidationError(f"Send it together with {times[0]}.", missing)


class HoldArgs(PageArgs):
    """Filters of the list of holds; all given must match."""

    status = fields.Choice(HoldStatus)
    record_id = fields.Id("rec", description="Holds that cover this record, by whatever scope.")
    session_id = fields.Id("ses", description="Holds on this very session.")
    agent_id = fields.Id("agt", description="Holds on this very agent.")


def scope_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope among the fields of a `NewHoldSchema`.

    Raises `Invalid` for a range that ends before it begins.
    """
    scope = {name: body[name] for name in holds.SCOPES if name in body}
    if "since" in scope and scope["since"] >= scope["until"]:
        raise Invalid(FieldError("/until", "Send a moment after since."))
    return scope


@blp.serves("POST", ADMIN_TENANT, HoldSchema, 201, takes=NewHoldSchema, errors=(404,))
def create(body: dict[str, Any]) -> Response:
    """Place a legal hold

    On one record, on the records of a session or an agent (later ones too), or on those created in
    a range of time. While it stands their content does not expire; content that was due, but not
    deleted yet, is kept and can be read again. What was deleted does not come back.
    """
    return once(
        201,
        lambda session: holds.represent(
            holds.create(session, caller(), body["reason"], scope_of(body))
        ),
    )


@blp.lists("", READ_TENANT, HoldSchema, HoldArgs, represent=holds.represent, errors=(404,))
def list_holds(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List legal holds, newest first, released ones too"""
    return holds.rows(session, caller(), filters(args), *where)


@blp.serves("GET /<hold_id>", READ_TENANT, HoldSchema)
def read(hold_id: UUID | None) -> dict[str, Any]:
    """Read a legal hold"""
    with transaction() as session:
        return holds.represent(holds.find(session, caller(), hold_id))


@blp.serves("DELETE /<hold_id>", ADMIN_TENANT, None, 204)
def release(hold_id: UUID | None) -> None:
    """Release a legal hold

    What it kept beyond its retention, and no other hold covers, reads as 410 at once and is deleted
    in the next run of expiry. Releasing it again changes nothing and answers 204 too.
    """
    with transaction() as session:
        holds.release(session, caller(), hold_id)
