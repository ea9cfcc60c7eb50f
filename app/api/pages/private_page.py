"""Pages that a token opens: one style, no script, and neither cached nor indexed."""

import base64
import hashlib
from pathlib import Path

from flask import Response, render_template

CONTENT_TYPE = "text/html; charset=utf-8"
_STYLE = (Path(__file__).parent / "templates" / "shared" / "page.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def page(template: str, status: int = 200, **shown: object) -> Response:
    """Render a template in the style of these pages."""
    text = render_template(f"{template}.html", style=_STYLE, **shown)
    return Response(text, status, content_type=CONTENT_TYPE)


def add_headers(response: Response, *, form_action: str = "'none'") -> Response:
    """Keep a response out of caches and indexes; for HTML, set the CSP with `form_action`."""
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["X-Robots-Tag"] = "noindex, nofollow"
    if response.mimetype == "text/html":
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'; "
            f"base-uri 'none'; form-action {form_action}"
        )
    return response
