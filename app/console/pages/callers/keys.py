"""API keys: the list, minting (the text is shown once), and revocation with its effects."""

from functools import partial

from flask import url_for
from werkzeug.wrappers import Response

from app import clock, ids
from app.api.http.services import caller, transaction
from app.api.pages import site
from app.api.resources.keys import ExpiresIn, NewKeySchema, RevokeArgs, list_keys, new_key
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.frame.lists import Listed
from app.core.callers import Role
from app.core.keys import keys

blp = Pages("keys", "/keys", whole_tenant=False)

_TERMS = {
    ExpiresIn.HOUR: "1 hour",
    ExpiresIn.DAY: "1 day",
    ExpiresIn.WEEK: "7 days",
    ExpiresIn.MONTH: "30 days",
    ExpiresIn.QUARTER: "90 days",
    ExpiresIn.YEAR: "1 year",
}


def _pin() -> dict[str, str] | None:
    if (pin := caller().pin) is None:
        return None
    return {"agent_id": ids.text("agt", pin.agent_id), "principal": pin.principal}


def _state(key: keys.Minted) -> str:
    row = key.row
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= clock.now() else "active"


_KEYS = lists.serve(
    blp,
    Listed(
        "keys",
        list_keys,
        lambda row: {**keys.represent(row), "state": _state(row)},
        named=lambda found: filter(None, [_pin(), *(each["pin"] for each in found)]),
        beside=lambda *_: {
            "pin": _pin(),
            "own": ids.text("key", caller().key_id),
            "roles": forms.choices(role for role in Role if caller().role.allows(role)),
        },
        shown={"terms": [(term.value, text) for term, text in _TERMS.items()]},
        does=("keys list", "GET /v1/keys"),
    ),
)


@blp.form("", Role.ADMIN, again=_KEYS.page)
def mint(typed: Input) -> Response:
    """Mint a key, and show its text on this page only."""
    made = forms.do(keys.mint, new_key(typed.load(NewKeySchema)))
    with transaction() as session:
        names = rendering.names_in(session, made["pin"] or {})
    return rendering.page(
        "keys/minted",
        key=made,
        names=names,
        does=(f"keys mint NAME --role {made['role']}", "POST /v1/keys"),
        requirement=site.requirement(),
    )


@blp.page("/<key_id>")
def show(key_id: str) -> Response:
    """Show a key, and the effects of its revocation."""
    with transaction(snapshot=True) as session:
        found = keys.find(session, caller(), ids.parse("key", key_id))
        effects = keys.effects(session, caller(), found.id)
        key = keys.represent(found)
        names = rendering.names_in(session, key["pin"] or {})
    return rendering.page(
        "keys/one",
        key=key,
        names=names,
        state=_state(found),
        own=found.id == caller().key_id,
        effects=effects,
        most=keys.MOST,
        does=(f"keys revoke {key_id}", f"DELETE /v1/keys/{key_id}"),
    )


@blp.form("/<key_id>/revoke", Role.ADMIN)
def revoke(key_id: str) -> Response:
    """Revoke a key, alone or with all its descendants."""
    args = forms.sent().load(RevokeArgs)
    forms.do(partial(keys.revoke, **args), ids.parse("key", key_id))
    others = ", with all that descend from it" if args["descendants"] else ""
    return rendering.done(url_for(".show", key_id=key_id), f"The key was revoked{others}.")
