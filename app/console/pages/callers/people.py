"""Who is signed in to the console, ending sessions, and the page of a person."""

from functools import partial
from typing import Any, cast
from uuid import UUID

from flask import url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.console.frame import browser, forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.lists import Listed
from app.core.callers import Role
from app.core.keys import console_sessions, groups
from app.core.keys.console_sessions import SignedIn, Token

blp = Pages("people")


def _shown(found: SignedIn) -> dict[str, Any]:
    named = {"id": ids.text("con", found.id), "caller_id": ids.of_caller(found.caller_id)}
    return vars(found) | named


def _own_id(session: Session) -> str:
    token = cast(Token, browser.read_token())
    return ids.text("con", console_sessions.id_of(session, token))


def _groups(session: Session, *_: object) -> dict[str, Any]:
    """Return which groups may sign in, and whose session this is."""
    roles = groups.of_tenant(session, caller().tenant_id).items()
    shown = [{"name": name, "role": role} for name, role in roles]
    return {"own": _own_id(session), "roles": shown}


lists.serve(
    blp,
    Listed(
        "people",
        lambda session, _, *where: console_sessions.rows(session, caller().tenant_id, *where),
        _shown,
        named=lambda _: (),
        beside=_groups,
    ),
    "/sign-ins",
    Role.ADMIN,
)


@blp.form("/sign-ins/end", Role.ADMIN)
def end_all() -> Response:
    """End every session but one's own."""
    return _end("people.index")


@blp.form("/sign-ins/<session_id>/end", Role.ADMIN)
def end(session_id: str) -> Response:
    """End one session; one's own ends by signing out."""
    return _end("people.index", one=ids.parse("con", session_id) or UUID(int=0))


@blp.page("/people/<person_id>")
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
        signed_in=[_shown(each) for each in good],
        own=own,
    )


@blp.form("/people/<person_id>/end", Role.ADMIN)
def end_of_person(person_id: str) -> Response:
    """End every session of a person but one's own."""
    of = ids.parse("usr", person_id) or UUID(int=0)
    return _end("people.show", of=of, person_id=person_id)


def _end(page: str, *, one: UUID | None = None, of: UUID | None = None, **at: Any) -> Response:
    own = cast(Token, browser.read_token())
    end = partial(console_sessions.end_some, one=one, of=of)
    count = forms.do(end, own)
    many = "1 session was" if count == 1 else f"{count:,} sessions were"
    return rendering.done(url_for(f"console.{page}", **at), f"{many} ended.")
