"""The console's style and script: read once, served under a URL that names their bytes."""

from hashlib import sha256
from pathlib import Path

from flask import Blueprint, Response, abort

from app.api.http.answers import conditional_bytes
from app.api.http.auth import public

blp = Blueprint("assets", __name__, url_prefix="/assets")

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent.parent / "static"
_FILES = {path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir())}
_DIGEST = {name: sha256(content).hexdigest() for name, content in _FILES.items()}
_YEAR = 365 * 24 * 3600


def version(name: str) -> str:
    """Return the part of a file's digest that its URL contains."""
    return _DIGEST[name][:16]


@blp.get("/<digest>/<name>")
@public
def read(digest: str, name: str) -> Response:
    """Serve a file; under the URL of another release too, but then not to be cached."""
    if name not in _FILES:
        abort(404)
    content_type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    answered = conditional_bytes(_FILES[name], _DIGEST[name], content_type)
    current = digest == version(name)
    answered.headers["Cache-Control"] = (
        f"public, max-age={_YEAR}, immutable" if current else "no-cache"
    )
    return answered
