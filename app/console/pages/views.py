"""Saved views: their list, and the forms that make, rename and delete one."""

from urllib.parse import parse_qsl, urlencode

from flask import Blueprint, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.console.frame import downloads, forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.keys import saved_views
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint("views", __name__, url_prefix="/views")

_LONGEST_QUERY = 4_000


class NameSchema(Schema):
    """The name of a view."""

    name = fields.Text(80, required=True)


class ViewSchema(NameSchema):
    """The list of a view, and the query that selects its rows."""

    page = fields.Text(40, required=True)
    query = fields.Text(_LONGEST_QUERY, required=True)


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List all views."""
    return _page(forms.blank())


@blp.post("")
@signed_in(Role.WRITE, whole_tenant=True)
def create() -> Response:
    """Keep a list's filters under a name."""
    typed = forms.sent()
    try:
        wanted = typed.load(ViewSchema)
        listed = downloads.LISTS.get(wanted["page"])
        if listed is None:
            raise Invalid(FieldError("/page", "No list has this name."))
        pairs = [pair for pair in parse_qsl(wanted["query"]) if pair[0] not in ("cursor", "limit")]
        Input(MultiDict(pairs)).load(listed.args)
        query = urlencode(pairs)
        forms.once(
            lambda session: {
                "name": saved_views.create(
                    session, caller(), listed.name, wanted["name"], query
                ).name
            }
        )
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    place = rendering.address(dict(MultiDict(pairs).lists()), listed.endpoint)
    return rendering.done(place, f"The view “{wanted['name']}” is kept for everybody.")


@blp.post("/<view_id>/rename")
@signed_in(Role.WRITE, whole_tenant=True)
def rename(view_id: str) -> Response:
    """Give a view another name."""
    typed = forms.sent()
    try:
        name = typed.load(NameSchema)["name"]
        view = ids.parse("viw", view_id)
        forms.once(lambda session: {"name": saved_views.rename(session, caller(), view, name).name})
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    return rendering.done(url_for(".index"), f"The view is called “{name}” now.")


@blp.post("/<view_id>/delete")
@signed_in(Role.WRITE, whole_tenant=True)
def delete(view_id: str) -> Response:
    """Delete a view."""
    view = ids.parse("viw", view_id)
    gone = forms.once(lambda session: {"name": saved_views.delete(session, caller(), view)})
    return rendering.done(url_for(".index"), f"The view “{gone['name']}” was deleted.")


def _page(typed: Input, status: int = 200) -> Response:
    with transaction() as session:
        shown = [
            {
                "id": ids.text("viw", each.id),
                "page": each.page,
                "name": each.name,
                "query": each.query,
                "place": f"{url_for(downloads.LISTS[each.page].endpoint)}?{each.query}",
                "created_at": each.created_at,
            }
            for each in saved_views.rows(session, caller())
            if each.page in downloads.LISTS
        ]
    return rendering.page("views/list", status, typed=typed, views=shown)
