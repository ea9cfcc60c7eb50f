"""API keys: the list, minting (the text is shown once), and revocation with its effects."""

from datetime import datetime

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, transaction
from app.api.pages import site
from app.api.resources.keys import ExpiresIn, NewKeySchema, RevokeArgs, new_key
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.keys import keys
from app.database import database_now
from app.errors import Invalid

blp = Blueprint("keys", __name__, url_prefix="/keys")

_TERMS = {
    ExpiresIn.HOUR: "1 hour",
    ExpiresIn.DAY: "1 day",
    ExpiresIn.WEEK: "7 days",
    ExpiresIn.MONTH: "30 days",
    ExpiresIn.QUARTER: "90 days",
    ExpiresIn.YEAR: "1 year",
}


@blp.get("")
@signed_in(Role.READ)
def index() -> Response:
    """List the keys, newest first."""
    return _page(forms.blank())


@blp.post("")
@signed_in(Role.ADMIN)
def mint() -> Response:
    """Mint a key, and show its text on this page only."""
    typed = forms.sent()
    try:
        wanted = new_key(typed.load(NewKeySchema))
        made = forms.once(lambda session: keys.mint(session, caller(), wanted))
        with transaction() as session:
            names = rendering.names_in(session, made["pin"] or {})
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    does = (f"keys mint NAME --role {made['role']}", "POST /v1/keys")
    return rendering.page(
        "keys/minted",
        key=made,
        names=names,
        does=does,
        requirement=site.requirement(),
    )


@blp.get("/<key_id>")
@signed_in(Role.READ)
def show(key_id: str) -> Response:
    """Show a key, and the effects of its revocation."""
    with transaction(snapshot=True) as session:
        found = keys.find(session, caller(), ids.parse("key", key_id))
        effects = keys.effects(session, caller(), found.id)
        now = database_now(session)
        key = keys.represent(found)
        names = rendering.names_in(session, key["pin"] or {})
    return rendering.page(
        "keys/one",
        key=key,
        names=names,
        state=_state(found, now),
        own=found.id == caller().key_id,
        effects=effects,
        most=keys.MOST,
        does=(f"keys revoke {key_id}", f"DELETE /v1/keys/{key_id}"),
    )


@blp.post("/<key_id>/revoke")
@signed_in(Role.ADMIN)
def revoke(key_id: str) -> Response:
    """Revoke a key, alone or with all its descendants."""
    args = forms.sent().load(RevokeArgs)
    forms.once(lambda session: keys.revoke(session, caller(), ids.parse("key", key_id), **args))
    others = ", with all that descend from it" if args["descendants"] else ""
    return rendering.done(url_for(".show", key_id=key_id), f"The key was revoked{others}.")


def _page(typed: Input, status: int = 200) -> Response:
    asked = forms.query()
    with transaction() as session:
        now = database_now(session)
        try:
            args = asked.load(PageArgs)
        except Invalid as wrong:
            typed, args = forms.blank().refused(wrong), PageArgs().load({})
        found = page_of(
            args,
            lambda *where: keys.rows(session, caller(), *where),
            lambda row: {**keys.represent(row), "state": _state(row, now)},
        )
        pins = [_pin(), *(each["pin"] for each in found["data"])]
        names = rendering.names_in(session, *filter(None, pins))
    return rendering.page(
        "keys/list",
        status,
        typed=typed,
        found=found,
        names=names,
        pin=_pin(),
        own=ids.text("key", caller().key_id),
        roles=[(role.value, role.value) for role in Role if caller().role.allows(role)],
        terms=[(term.value, text) for term, text in _TERMS.items()],
        does=("keys list", "GET /v1/keys"),
    )


def _pin() -> dict[str, str] | None:
    pin = caller().pin
    if pin is None:
        return None
    return {"agent_id": ids.text("agt", pin.agent_id), "principal": pin.principal}


def _state(key: keys.Minted, now: datetime) -> str:
    row = key.row
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "active"
