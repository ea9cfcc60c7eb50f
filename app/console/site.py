"""The console's blueprint: its pages under `/console`, and its errors as pages."""

import json
from urllib.parse import quote

from flask import Blueprint, Response, g, redirect, request, url_for
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response as AnyResponse

from app.api.http import problems
from app.api.http.auth import public
from app.api.http.documentation import parse_ids, write_ids
from app.api.http.services import caller
from app.console.frame import assets, browser, lists, navigation, rendering
from app.console.frame.access import signed_in
from app.console.pages import (
    agents,
    audit,
    deliveries,
    jobs,
    operator,
    overview,
    records,
    rules,
    settings,
    sign_in,
    webhooks,
)
from app.core.callers import Role
from app.errors import PROBLEM_TYPES

PAGES = (
    sign_in.blp,
    overview.blp,
    deliveries.blp,
    jobs.replays_blp,
    webhooks.blp,
    records.blp,
    records.findings_blp,
    rules.blp,
    agents.sessions_blp,
    agents.blp,
    agents.traces_blp,
    audit.exports_blp,
    audit.holds_blp,
    audit.blp,
    settings.keys_blp,
    settings.zone_blp,
    sign_in.people_blp,
    operator.blp,
    jobs.blp,
    settings.blp,
    overview.search_blp,
    overview.views_blp,
    assets.blp,
)

_KEPT_HEADERS = ("Retry-After", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def failure(error: Exception) -> Response:
    """Answer an error of a console's view as a page; a redirect stays one."""
    told = problems.answer_error(error)
    if told.status_code < 400 or browser.refreshes_itself():
        return told
    problem = json.loads(told.get_data())
    kept = {name: told.headers[name] for name in _KEPT_HEADERS if name in told.headers}
    back = navigation.page_of_form(request.path) if request.method == "POST" else None
    return rendering.page(
        "failure",
        told.status_code,
        kept,
        problem=problem,
        advice=PROBLEM_TYPES[g.problem].advice,
        back=back,
    )


blp = Blueprint("console", __name__, url_prefix="/console", template_folder="templates")
blp.url_value_preprocessor(parse_ids)
blp.url_defaults(write_ids)
blp.register_error_handler(Exception, failure)
blp.record(rendering.add_filters)
blp.record(lambda state: state.app.jinja_env.globals.update(views_of=lists.views_of))
for _page in PAGES:
    blp.register_blueprint(_page)


@blp.get("")
@blp.get("/")
@signed_in(Role.READ)
def home() -> AnyResponse:
    """Redirect to the first page that the key may see."""
    return redirect(url_for(next(iter(navigation.groups_for(caller()).values()))[0].endpoint), 303)


@blp.get("/<path:rest>")
@public
def nowhere(rest: str) -> AnyResponse:
    """Redirect from a form's URL to its page; other unknown URLs get the console's 404 page."""
    page = navigation.page_of_form(request.path)
    if page is None:
        raise NotFound
    return redirect(quote(page), 303)
