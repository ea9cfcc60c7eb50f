"""Who is signed in to the console, ending sessions, and the page of a person."""

from typing import Any, cast
from uuid import UUID

from flask import Blueprint, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, transaction
from app.console.frame import browser, forms, rendering
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.core.keys import console_sessions, groups
from app.core.keys.console_sessions import Token
from app.errors import Invalid
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema

blp = Blueprint("people", __name__)


class SignedInSchema(AnswerSchema):
    """A session of the console."""

    id = fields.Id("con")
    caller_id = party_fields.CallerId()
    name = fields.Text(200)
    email = fields.Text(254, allow_none=True)
    role = fields.Choice(Role)
    origin = fields.Text(50, allow_none=True)
    created_at = fields.Time()
    last_used_at = fields.Time()
    expires_at = fields.Time()


@blp.get("/sign-ins")
@signed_in(Role.ADMIN, whole_tenant=True)
def index() -> Response:
    """List who is signed in, newest first, and which groups may."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with transaction() as session:
        found_groups = groups.of_tenant(session, caller().tenant_id).items()
        roles = [{"name": name, "role": role} for name, role in found_groups]
        try:
            found = page_of(
                typed.load(PageArgs),
                lambda *where: console_sessions.rows(session, caller().tenant_id, *where),
                SignedInSchema.of,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
        own = _own_id(session)
    return rendering.page("people/list", typed=typed, found=found, own=own, roles=roles)


@blp.post("/sign-ins/end")
@signed_in(Role.ADMIN, whole_tenant=True)
def end_all() -> Response:
    """End every session but one's own."""
    return _end("people.index")


@blp.post("/sign-ins/<session_id>/end")
@signed_in(Role.ADMIN, whole_tenant=True)
def end(session_id: str) -> Response:
    """End one session; one's own ends by signing out."""
    return _end("people.index", one=ids.parse("con", session_id) or UUID(int=0))


@blp.get("/people/<person_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(person_id: str) -> Response:
    """Show a person, and their sessions."""
    tenant_id, wanted = caller().tenant_id, ids.parse("usr", person_id)
    with transaction() as session:
        person = groups.person(session, tenant_id, wanted)
        good = console_sessions.rows(session, tenant_id, None, 50, of=wanted)
        own = _own_id(session)
    return rendering.page(
        "people/one",
        person=person,
        person_id=person_id,
        signed_in=[SignedInSchema.of(each) for each in good],
        own=own,
    )


@blp.post("/people/<person_id>/end")
@signed_in(Role.ADMIN, whole_tenant=True)
def end_of_person(person_id: str) -> Response:
    """End every session of a person but one's own."""
    of = ids.parse("usr", person_id) or UUID(int=0)
    return _end("people.show", of=of, person_id=person_id)


def _end(page: str, *, one: UUID | None = None, of: UUID | None = None, **at: Any) -> Response:
    own = cast(Token, browser.read_token())
    done = forms.once(
        lambda session: {"count": console_sessions.end_some(session, caller(), own, one=one, of=of)}
    )
    many = "1 session was" if done["count"] == 1 else f"{done['count']:,} sessions were"
    return rendering.done(url_for(f"console.{page}", **at), f"{many} ended.")


def _own_id(session: Session) -> str:
    token = cast(Token, browser.read_token())
    return ids.text("con", console_sessions.id_of(session, token))
