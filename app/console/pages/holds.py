"""Legal holds: placed, listed and released."""

from flask import url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.records.holds import HoldArgs, NewHoldSchema, list_holds, scope_of
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.frame.lists import Listed
from app.core.callers import Role
from app.core.records import holds
from app.core.records.holds import HoldStatus

blp = Pages("holds", "/holds")

_HOLDS = lists.serve(
    blp,
    Listed(
        "holds",
        list_holds,
        holds.represent,
        HoldArgs,
        shown={"statuses": forms.choices(HoldStatus)},
        does=("holds list", "GET /v1/holds"),
    ),
)


@blp.form("", Role.ADMIN, again=_HOLDS.page)
def create(typed: Input) -> Response:
    """Place a hold."""
    wanted = typed.load(NewHoldSchema)
    given = (wanted["reason"], scope_of(wanted))
    made = forms.do(holds.create, *given, show=holds.represent)
    return rendering.done(url_for(".show", hold_id=made["id"]), "What it covers stays.")


@blp.page("/<hold_id>")
def show(hold_id: str) -> Response:
    """Show one hold."""
    with transaction() as session:
        hold = holds.represent(holds.find(session, caller(), ids.parse("hld", hold_id)))
        names = rendering.names_in(session, hold)
    does = (f"holds show {hold_id}", f"GET /v1/holds/{hold_id}")
    return rendering.page("holds/one", hold=hold, names=names, does=does)


@blp.form("/<hold_id>/release", Role.ADMIN)
def release(hold_id: str) -> Response:
    """Release a hold."""
    forms.do(holds.release, ids.parse("hld", hold_id))
    text = "The hold was released. What no other hold covers expires when its time is over."
    return rendering.done(url_for(".show", hold_id=hold_id), text)
