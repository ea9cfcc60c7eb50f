"""The pages for people: the API's documentation and a page for each problem type.

No script or style comes from elsewhere or stands inside a page, so they work offline and under a
strict Content-Security-Policy.
"""

from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import flask_swagger_ui
from apispec import APISpec
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    current_app,
    redirect,
    render_template,
    send_from_directory,
)
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.access.auth import public
from app.api.http.responses.answers import conditional_bytes, open_to_all
from app.errors import PROBLEM_TYPES
from app.evidence import pack

DOCUMENT = "record-service-openapi"

blp = Blueprint("site", __name__, template_folder="templates")

_DIST = Path(flask_swagger_ui.__file__).parent / "dist"
_ASSETS = frozenset(("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png"))
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

_ROBOTS = """\
User-agent: *
Disallow: /console
Disallow: /s/
Disallow: /unsubscribe/
Disallow: /v1/
"""
# The operation of `/verify.py` in the OpenAPI document.
_VERIFIER: dict[str, Any] = {
    "summary": "Read the verifier of evidence packs",
    "description": "`verify.py`: the bytes that are in each pack of this release. It needs Python "
    "3.8 or newer, and nothing else.",
    "security": [],
    "responses": {
        200: {
            "description": "The program.",
            "content": {"text/x-python": {"schema": {"type": "string"}}},
            "headers": {"ETag": {"description": "Its SHA-256.", "schema": {"type": "string"}}},
        },
        206: {
            "description": "The range that was asked for.",
            "content": {"text/x-python": {"schema": {"type": "string"}}},
        },
        304: {"description": "The caller has these bytes."},
        412: "PRECONDITION_FAILED",
        416: "REQUESTED_RANGE_NOT_SATISFIABLE",
    },
}


@blp.get("/")
@public
def home() -> AnyResponse:
    """Redirect to the console, which links to the documentation."""
    return redirect("/console")


@blp.get("/robots.txt")
@public
def robots() -> Response:
    """Keep search engines off the console, pages opened by a link, and the API."""
    return Response(_ROBOTS, content_type="text/plain; charset=utf-8")


@blp.get("/verify.py")
@public
def verifier() -> Response:
    """Serve the verifier of evidence packs: the same bytes as in each pack of this release."""
    source = pack.verifier_source()
    etag = sha256(source).hexdigest()
    answered = conditional_bytes(source, etag, "text/x-python; charset=utf-8")
    answered.headers["Cache-Control"] = "no-cache"
    return open_to_all(answered)


def describe(app: Flask, spec: APISpec) -> None:
    """Add `/verify.py` to the OpenAPI document, since programs read it."""
    (rule,) = app.url_map.iter_rules(f"{blp.name}.{verifier.__name__}")
    spec.path(rule=rule, operations={"get": deepcopy(_VERIFIER)})


@blp.get("/openapi.json")
@public
def openapi() -> Response:
    """Serve the OpenAPI document."""
    return Response(current_app.extensions[DOCUMENT], content_type="application/json")


@blp.get("/docs")
@public
def docs() -> Response:
    """Serve the page that shows the OpenAPI document."""
    return _page("docs")


@blp.get("/docs/start.js")
@public
def start() -> Response:
    """Serve the script that starts Swagger UI."""
    return Response(render_template("site/start.js"), content_type="text/javascript; charset=utf-8")


@blp.get("/docs/<name>")
@public
def asset(name: str) -> Response:
    """Serve one of Swagger UI's files."""
    if name not in _ASSETS:
        abort(404)
    return send_from_directory(_DIST, name, max_age=3600)


@blp.get("/problems/<slug>")
@public
def explain(slug: str) -> Response:
    """Serve the page of a problem type, to which its `type` leads."""
    kind = PROBLEM_TYPES.get(slug)
    if kind is None:
        abort(404)
    return _page("problem", slug=slug, kind=kind)


def _page(name: str, **shown: object) -> Response:
    return Response(
        render_template(f"site/{name}.html", **shown),
        content_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"},
    )
