"""The pages for people: the API's documentation, problem types, and how to install the client.

No script or style comes from elsewhere or stands inside a page, so they work offline and under a
strict Content-Security-Policy.
"""

import importlib.util
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from apispec import APISpec
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    current_app,
    redirect,
    render_template,
    request,
)
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.answers import conditional_bytes, open_to_all
from app.api.http.auth import public
from app.api.http.services import services
from app.api.pages import reference
from app.errors import PROBLEM_TYPES
from app.evidence import pack

DOCUMENT = "record-service-openapi"

blp = Blueprint("site", __name__, template_folder="templates")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
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
    """Serve the reference of the API; `q` has the words of the operations that are shown."""
    words, document = request.args.get("q", "")[:200], current_app.extensions[DOCUMENT]
    return _answer(_reference(document, words) if words else _whole_reference(document))


@cache
def _whole_reference(document: bytes) -> str:
    return _reference(document, "")


def _reference(document: bytes, words: str) -> str:
    every = reference.read(document)
    groups = reference.matching(every, words)
    return render_template(
        "site/docs.html",
        groups=groups,
        q=words,
        base_url=services().settings.base_url,
        total=sum(len(group.operations) for group in every),
        total_found=sum(len(group.operations) for group in groups),
    )


@blp.get("/docs/docs.js")
@public
def script() -> Response:
    """Serve the reference's script."""
    return Response(render_template("site/docs.js"), content_type="text/javascript; charset=utf-8")


@blp.get("/problems/<slug>")
@public
def explain(slug: str) -> Response:
    """Serve the page of a problem type, to which its `type` leads."""
    kind = PROBLEM_TYPES.get(slug)
    if kind is None:
        abort(404)
    return _page("problem", slug=slug, kind=kind)


def _page(name: str, **shown: object) -> Response:
    return _answer(render_template(f"site/{name}.html", **shown))


def _answer(text: str) -> Response:
    return Response(
        text,
        content_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"},
    )


client = Blueprint("client_package", __name__, url_prefix="/client", template_folder="templates")

_BACKEND = Path(__file__).resolve().parents[3] / "client" / "wheel_backend.py"
DISTRIBUTION = "record-service-client"
_REQUIREMENT = "requirement.txt"
_CLIENT_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class _Wheel:
    name: str
    content: bytes
    digest: str

    @property
    def requirement(self) -> str:
        """What an installer is told (PEP 508): the wheel's address, and its SHA-256 to check."""
        url = f"{services().settings.base_url}/client/{self.name}#sha256={self.digest}"
        return f"{DISTRIBUTION} @ {url}"


@client.get("/")
@public
def links() -> Response:
    """Serve the page with the lines that install the wheel."""
    wheel = _wheel()
    page = render_template("site/client.html", wheel=wheel).encode()
    answered = _file(page, sha256(page).hexdigest(), "text/html; charset=utf-8")
    answered.headers["Content-Security-Policy"] = _CLIENT_POLICY
    return answered


@client.get("/<name>")
@public
def download(name: str) -> Response:
    """Serve the wheel, or the requirement that names it as text."""
    wheel = _wheel()
    if name == _REQUIREMENT:
        line = f"{wheel.requirement}\n".encode()
        return _file(line, sha256(line).hexdigest(), "text/plain; charset=utf-8")
    if name != wheel.name:
        abort(404)
    return _file(wheel.content, wheel.digest, "application/zip")


def requirement() -> str:
    """Return what a person tells pip, pipx or uv to install."""
    return _wheel().requirement


def _file(content: bytes, etag: str, content_type: str) -> Response:
    answered = conditional_bytes(content, etag, content_type)
    answered.headers["Cache-Control"] = "no-cache"
    return answered


@cache
def _wheel() -> _Wheel:
    """Build the wheel as pip would: by the client's own build backend."""
    spec = importlib.util.spec_from_file_location("wheel_backend", _BACKEND)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(_BACKEND)
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    name, content = backend.wheel()
    return _Wheel(name, content, sha256(content).hexdigest())
