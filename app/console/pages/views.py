"""Saved views: their list, and the forms that make, rename and delete one."""

from urllib.parse import parse_qsl, urlencode

from flask import url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.keys import saved_views
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import Schema

blp = Pages("views", "/views")

_LONGEST_QUERY = 4_000


class NameSchema(Schema):
    """The name of a view."""

    name = fields.Text(80, required=True)


class ViewSchema(NameSchema):
    """The list of a view, and the query that selects its rows."""

    page = fields.Text(40, required=True)
    query = fields.Text(_LONGEST_QUERY, required=True)


def _page(typed: Input, status: int = 200, **_: str) -> Response:
    with transaction() as session:
        shown = [
            {
                "id": ids.text("viw", each.id),
                "page": each.page,
                "name": each.name,
                "query": each.query,
                "place": url_for(f"console.{each.page}.index") + f"?{each.query}",
                "created_at": each.created_at,
            }
            for each in saved_views.rows(session, caller())
            if each.page in lists.LISTS
        ]
    return rendering.page("views/list", status, typed=typed, views=shown)


@blp.page("")
def index() -> Response:
    """List all views."""
    return _page(forms.blank())


@blp.form("", Role.WRITE, again=_page)
def create(typed: Input) -> Response:
    """Keep a list's filters under a name."""
    wanted = typed.load(ViewSchema)
    listed = lists.LISTS.get(wanted["page"])
    if listed is None:
        raise Invalid(FieldError("/page", "No list has this name."))
    pairs = [pair for pair in parse_qsl(wanted["query"]) if pair[0] not in ("cursor", "limit")]
    Input(MultiDict(pairs)).load(listed.args)
    forms.do(saved_views.create, listed.name, wanted["name"], urlencode(pairs))
    place = rendering.address(dict(MultiDict(pairs).lists()), f"console.{listed.name}.index")
    return rendering.done(place, f"The view “{wanted['name']}” is kept for everybody.")


@blp.form("/<view_id>/rename", Role.WRITE, again=_page)
def rename(typed: Input, view_id: str) -> Response:
    """Give a view another name."""
    name = typed.load(NameSchema)["name"]
    forms.do(saved_views.rename, ids.parse("viw", view_id), name)
    return rendering.done(url_for(".index"), f"The view is called “{name}” now.")


@blp.form("/<view_id>/delete", Role.WRITE)
def delete(view_id: str) -> Response:
    """Delete a view."""
    name = forms.do(saved_views.delete, ids.parse("viw", view_id))
    return rendering.done(url_for(".index"), f"The view “{name}” was deleted.")
