"""Legal holds: placed, listed and released."""

from typing import Any

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import filters, page_of
from app.api.http.services import caller, transaction
from app.api.resources.records.holds import HoldArgs, NewHoldSchema, scope_of
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.records import holds
from app.core.records.holds import HoldStatus
from app.errors import Invalid

blp = Blueprint("holds", __name__, url_prefix="/holds")


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List holds, newest first, as the URL filters them."""
    return _page(forms.blank())


@blp.post("")
@signed_in(Role.ADMIN, whole_tenant=True)
def create() -> Response:
    """Place a hold."""
    typed = forms.sent()
    try:
        wanted = typed.load(NewHoldSchema)
        scope = scope_of(wanted)
        made = forms.once(
            lambda session: holds.represent(
                holds.create(session, caller(), wanted["reason"], scope)
            )
        )
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    return rendering.done(url_for(".show", hold_id=made["id"]), "What it covers stays.")


@blp.get("/<hold_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(hold_id: str) -> Response:
    """Show one hold."""
    with transaction() as session:
        hold = holds.represent(holds.find(session, caller(), ids.parse("hld", hold_id)))
        names = rendering.names_in(session, hold)
    does = (f"holds show {hold_id}", f"GET /v1/holds/{hold_id}")
    return rendering.page("holds/one", hold=hold, names=names, does=does)


@blp.post("/<hold_id>/release")
@signed_in(Role.ADMIN, whole_tenant=True)
def release(hold_id: str) -> Response:
    """Release a hold."""
    forms.once(lambda session: holds.release(session, caller(), ids.parse("hld", hold_id)))
    text = "The hold was released. What no other hold covers expires when its time is over."
    return rendering.done(url_for(".show", hold_id=hold_id), text)


def _page(typed: Input, status: int = 200) -> Response:
    asked = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    names: dict[str, str] = {}
    with transaction() as session:
        try:
            args = asked.load(HoldArgs)
            found = page_of(
                args,
                lambda *where: holds.rows(session, caller(), filters(args), *where),
                holds.represent,
            )
            names = rendering.names_in(session, *found["data"], asked.typed)
        except Invalid as wrong:
            asked = asked.refused(wrong)
    return rendering.page(
        "holds/list",
        status,
        typed=typed,
        asked=asked,
        found=found,
        names=names,
        statuses=[(each.value, each.value) for each in HoldStatus],
        does=("holds list", "GET /v1/holds"),
    )
