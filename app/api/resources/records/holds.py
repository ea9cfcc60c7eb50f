"""Legal holds over HTTP: placed and released by an administrator, listed with their ends."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError

from app.api.http.answers import answer, no_content
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, filters, page, page_schema
from app.api.http.services import caller, transaction
from app.core.callers import Role
from app.core.records import holds
from app.core.records.holds import HoldSchema, HoldStatus
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
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


HoldPageSchema = page_schema(HoldSchema)


def scope_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope among the fields of a `NewHoldSchema`.

    Raises `Invalid` for a range that ends before it begins.
    """
    scope = {name: body[name] for name in holds.SCOPES if name in body}
    if "since" in scope and scope["since"] >= scope["until"]:
        raise Invalid(FieldError("/until", "Send a moment after since."))
    return scope


@blp.route("", methods=["POST"])
@requires(Role.ADMIN, whole_tenant=True)
@blp.arguments(NewHoldSchema)
@blp.response(201, HoldSchema)
@blp.alt_response(404, "NOT_FOUND")
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


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(HoldArgs, location="query")
@blp.response(200, HoldPageSchema)
@blp.alt_response(404, "NOT_FOUND")
def list_holds(args: dict[str, Any]) -> Response:
    """List legal holds, newest first, released ones too"""
    with transaction() as session:
        return page(
            args,
            lambda *where: holds.rows(session, caller(), filters(args), *where),
            holds.represent,
        )


@blp.route("/<hold_id>", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.response(200, HoldSchema)
def read(hold_id: UUID | None) -> Response:
    """Read a legal hold"""
    with transaction() as session:
        return answer(holds.represent(holds.find(session, caller(), hold_id)))


@blp.route("/<hold_id>", methods=["DELETE"])
@requires(Role.ADMIN, whole_tenant=True)
@blp.response(204)
def release(hold_id: UUID | None) -> Response:
    """Release a legal hold

    What it kept beyond its retention, and no other hold covers, reads as 410 at once and is deleted
    in the next run of expiry. Releasing it again changes nothing and answers 204 too.
    """
    with transaction() as session:
        holds.release(session, caller(), hold_id)
    return no_content()
