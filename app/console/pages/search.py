"""The box on every page: any id leads to its page, words to the records and findings with them."""

from collections.abc import Callable
from typing import Any

from flask import redirect, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, reads_objects, services, transaction
from app.api.resources.search import SearchArgs
from app.console.frame import forms, navigation, rendering
from app.console.frame.access import Pages
from app.core import lookup
from app.core.lookup import Hit, Type
from app.schemas import fields

blp = Pages("search", "/search", whole_tenant=False)


class BoxArgs(SearchArgs):
    """What is searched for; for a field that takes ids, by its name, what it may mean alone."""

    kind = fields.Text(50)


@blp.page("")
@reads_objects
def index() -> Response:
    """Redirect to the only result, or list the results."""
    typed = forms.query()
    keys = services().settings.master_keys
    found: list[dict[str, Any]] = []
    with typed.refusing():
        if typed.value("q").strip():
            args = typed.load(BoxArgs)
            kinds = forms.kinds_of(args.get("kind", ""))
            with transaction() as session:
                hits = lookup.find(session, caller(), keys, args["q"], args["limit"], kinds)
            found = [{**lookup.represent(hit, ""), "place": _place(hit)} for hit in hits]
    if len(found) == 1 and "kind" not in typed.typed:
        return redirect(found[0]["place"], 303)
    return rendering.page(
        "search/index", typed=typed, found=found, does=("search WORDS", "GET /v1/search?q=WORDS")
    )


# These stand on the page of something else, or below it.
_WITHIN: dict[Type, Callable[[Hit], str]] = {
    Type.DELIVERY: lambda hit: url_for(
        "console.deliveries.show",
        webhook_id=ids.text("whk", hit.parent or hit.id),
        delivery_id=ids.text("dlv", hit.id),
    ),
    Type.SHARE_LINK: lambda hit: url_for(
        "console.records.show",
        record_id=ids.text("rec", hit.parent or hit.id),
        _anchor="share-links",
    ),
}


def _place(hit: Hit) -> str:
    """Return the URL of the console's page that shows the result."""
    if hit.type in _WITHIN:
        return _WITHIN[hit.type](hit)
    return navigation.place_of(lookup.represent(hit, "")["id"])
