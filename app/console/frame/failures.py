"""Errors as HTML pages, made from the API's problem details."""

import json

from flask import Response, g, request

from app.api.http import problems
from app.console.frame import browser, navigation, rendering
from app.errors import PROBLEM_TYPES

_KEPT_HEADERS = ("Retry-After", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def answer(error: Exception) -> Response:
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
