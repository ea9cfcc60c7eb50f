"""Period exports: ordered, followed, downloaded, deleted."""

from typing import Any

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, transaction
from app.api.resources.exports import NewExportSchema, represent, sent
from app.console.frame import browser, forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.exports import exports
from app.errors import Invalid

blp = Blueprint("exports", __name__, url_prefix="/exports")


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List the exports, newest first."""
    return _page(forms.blank())


@blp.post("")
@signed_in(Role.ADMIN, whole_tenant=True)
def create() -> Response:
    """Order an export."""
    typed = forms.sent()
    try:
        wanted = typed.load(NewExportSchema)
        made = forms.once(lambda session: represent(exports.create(session, caller(), wanted)))
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    return rendering.done(url_for(".show", export_id=made["id"]), "The export is being made.")


@blp.get("/<export_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(export_id: str) -> Response:
    """Show one export, with its totals once it is made."""
    with transaction() as session:
        found = exports.find(session, caller().tenant_id, ids.parse("exp", export_id))
        export = represent(found)
        names = rendering.names_in(session, export)
    return rendering.page(
        "exports/one",
        export=export,
        names=names,
        watched=export["state"] == "making",
        does=(f"exports show {export_id}", f"GET /v1/exports/{export_id}"),
    )


@blp.get(f"/<export_id>/files/{exports.FILE}")
@signed_in(Role.READ, whole_tenant=True)
def download(export_id: str) -> Response:
    """Send an export's file, as the API does.

    It is audited as taken by the reader's key, so another site's link leads to the page only.
    """
    if not browser.is_from_here():
        text = "Another page has asked for the file. Take it here, if you want it."
        return rendering.done(url_for(".show", export_id=export_id), text)
    return sent(ids.parse("exp", export_id))


@blp.post("/<export_id>/delete")
@signed_in(Role.ADMIN, whole_tenant=True)
def delete(export_id: str) -> Response:
    """Delete an export's file, or stop its making."""
    forms.once(lambda session: exports.delete(session, caller(), ids.parse("exp", export_id)))
    place = url_for(".show", export_id=export_id)
    return rendering.done(place, "The file was deleted. What was signed stays here.")


def _page(typed: Input, status: int = 200) -> Response:
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with typed.refusing():
        args = forms.query().load(PageArgs)
        with transaction() as session:
            found = page_of(
                args, lambda *where: exports.rows(session, caller().tenant_id, *where), represent
            )
    return rendering.page(
        "exports/list",
        status,
        typed=typed,
        found=found,
        does=("exports list", "GET /v1/exports"),
    )
