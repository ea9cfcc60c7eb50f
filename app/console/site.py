"""The console's blueprint: its pages under `/console`, and its errors as pages."""

from urllib.parse import quote

from flask import Blueprint, redirect, request, url_for
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from app.api.http.access.auth import caller, public
from app.console.frame import assets, failures, navigation, rendering
from app.console.frame.access import signed_in
from app.console.pages import (
    audit,
    deliveries,
    delivery,
    findings,
    jobs,
    keys,
    mail,
    overview,
    receivers,
    records,
    replays,
    search,
    settings,
    sign_in,
    webhooks,
)
from app.core.callers import Role

PAGES = (
    sign_in,
    overview,
    deliveries,
    delivery,
    replays,
    webhooks,
    receivers,
    records,
    findings,
    audit,
    keys,
    jobs,
    settings,
    mail,
    search,
    assets,
)

blp = Blueprint("console", __name__, url_prefix="/console", template_folder="templates")
blp.register_error_handler(Exception, failures.answer)
blp.record(rendering.add_filters)
for _page in PAGES:
    blp.register_blueprint(_page.blp)


@blp.get("")
@blp.get("/")
@signed_in(Role.READ)
def home() -> Response:
    """Redirect to the first page that the key may see."""
    return redirect(url_for(navigation.entries_for(caller())[0].endpoint), 303)


@blp.get("/<path:rest>")
@public
def nowhere(rest: str) -> Response:
    """Redirect from a form's URL to its page; other unknown URLs get the console's 404 page."""
    page = navigation.page_of_form(request.path)
    if page is None:
        raise NotFound
    return redirect(quote(page), 303)
