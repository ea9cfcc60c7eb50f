"""The box on every page: any id leads to its page, words to the records and findings with them."""

from collections.abc import Callable
from typing import Any

from flask import Blueprint, redirect, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.access.auth import caller
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.api.resources.search import SearchArgs
from app.console.frame import forms, navigation, rendering
from app.console.frame.access import signed_in
from app.core import lookup
from app.core.callers import Role
from app.core.lookup import Hit, Type

blp = Blueprint("search", __name__, url_prefix="/search")


@blp.get("")
@signed_in(Role.READ)
def index() -> Response:
    """Redirect to the only result, or list the results."""
    typed = forms.query()
    settings = services().settings
    found: list[dict[str, Any]] = []
    with typed.refusing():
        if typed.value("q").strip():
            args = typed.load(SearchArgs)
            with transaction() as session:
                hits = lookup.find(
                    session, caller(), settings.master_keys, args["q"], args["limit"]
                )
            found = [{**lookup.represent(hit, ""), "place": _place(hit)} for hit in hits]
    if len(found) == 1:
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
    text = lookup.represent(hit, "")["id"]
    if hit.type is Type.WEBHOOK and hit.is_deleted:
        return url_for("console.deliveries.index", webhook_id=text)
    if hit.type is Type.RULE and hit.is_deleted:
        # Its first version is always there.
        return url_for("console.rules.version", rule_id=text, number=1)
    return navigation.place_of(text)
