"""The client's wheel, and the line that installs it: by its address and SHA-256, not by name.

The wheel is built from the checkout's `client/` at the first request and kept in memory: the same
bytes in every process, on a file system that may be read-only.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from flask import Blueprint, Response, abort, render_template

from app.api.http.answers import conditional_bytes
from app.api.http.auth import public
from app.api.http.services import services

blp = Blueprint("client_package", __name__, url_prefix="/client", template_folder="templates")

_BACKEND = Path(__file__).resolve().parents[3] / "client" / "wheel_backend.py"
DISTRIBUTION = "record-service-client"
_REQUIREMENT = "requirement.txt"
_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


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


@blp.get("/")
@public
def links() -> Response:
    """Serve the page with the lines that install the wheel."""
    wheel = _wheel()
    page = render_template("site/client.html", wheel=wheel).encode()
    answered = _answer(page, sha256(page).hexdigest(), "text/html; charset=utf-8")
    answered.headers["Content-Security-Policy"] = _POLICY
    return answered


@blp.get("/<name>")
@public
def download(name: str) -> Response:
    """Serve the wheel, or the requirement that names it as text."""
    wheel = _wheel()
    if name == _REQUIREMENT:
        line = f"{wheel.requirement}\n".encode()
        return _answer(line, sha256(line).hexdigest(), "text/plain; charset=utf-8")
    if name != wheel.name:
        abort(404)
    return _answer(wheel.content, wheel.digest, "application/zip")


def requirement() -> str:
    """Return what a person tells pip, pipx or uv to install."""
    return _wheel().requirement


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
