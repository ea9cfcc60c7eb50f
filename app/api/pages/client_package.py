"""The client's wheel, and the page by which pip finds it (`pip install --find-links`).

The wheel is built from the checkout's `client/` at the first request and kept in memory: the same
bytes in every process, on a file system that may be read-only.
"""

import html
import importlib.util
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from flask import Blueprint, Response, abort

from app.api.http.access.auth import public
from app.api.http.responses.conditional import conditional_bytes

blp = Blueprint("client_package", __name__, url_prefix="/client")

_BACKEND = Path(__file__).resolve().parents[3] / "client" / "wheel_backend.py"
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>record-service: the client</title>
</head>
<body><main>
<h1>The client</h1>
<p>The command <code>records</code> and its Python library: pip, pipx and uv install it by
<code>--find-links</code> with the address of this page, and the name
<code>record-service-client</code>.</p>
<p><a href="{name}#sha256={digest}">{name}</a></p>
</main></body>
</html>
"""
_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class _Wheel:
    name: str
    content: bytes
    digest: str


@blp.get("/")
@public
def links() -> Response:
    """Serve the page of links."""
    wheel = _wheel()
    page = _PAGE.format(name=html.escape(wheel.name), digest=wheel.digest).encode()
    answered = _answer(page, sha256(page).hexdigest(), "text/html; charset=utf-8")
    answered.headers["Content-Security-Policy"] = _POLICY
    return answered


@blp.get("/<name>")
@public
def download(name: str) -> Response:
    """Serve the wheel."""
    wheel = _wheel()
    if name != wheel.name:
        abort(404)
    return _answer(wheel.content, wheel.digest, "application/zip")


def _answer(content: bytes, etag: str, content_type: str) -> Response:
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
