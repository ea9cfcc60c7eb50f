"""Period exports: ordered, followed, downloaded, deleted."""

from flask import url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.records import exports as exports_api
from app.api.resources.records.exports import NewExportSchema, list_exports, represent
from app.console.frame import browser, forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.frame.lists import Listed
from app.core.callers import Role
from app.core.exports import exports

blp = Pages("exports", "/exports")

_EXPORTS = lists.serve(
    blp,
    Listed(
        "exports",
        list_exports,
        represent,
        does=("exports list", "GET /v1/exports"),
    ),
)


@blp.form("", Role.ADMIN, again=_EXPORTS.page)
def create(typed: Input) -> Response:
    """Order an export."""
    made = forms.do(exports.create, typed.load(NewExportSchema), show=represent)
    return rendering.done(url_for(".show", export_id=made["id"]), "The export is being made.")


@blp.page("/<export_id>")
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


@blp.page(f"/<export_id>/files/{exports.FILE}")
def download(export_id: str) -> Response:
    """Send an export's file, as the API does.

    It is audited as taken by the reader's key, so another site's link leads to the page only.
    """
    if not browser.is_from_here():
        text = "Another page has asked for the file. Take it here, if you want it."
        return rendering.done(url_for(".show", export_id=export_id), text)
    return exports_api.download(ids.parse("exp", export_id))


@blp.form("/<export_id>/delete", Role.ADMIN)
def delete(export_id: str) -> Response:
    """Delete an export's file, or stop its making."""
    forms.do(exports.delete, ids.parse("exp", export_id))
    place = url_for(".show", export_id=export_id)
    return rendering.done(place, "The file was deleted. What was signed stays here.")
