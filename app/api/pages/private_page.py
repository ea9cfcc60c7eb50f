"""Pages that a token opens: one style, no script, and neither cached nor indexed."""

from pathlib import Path

from flask import Response

from app.evidence.page import rendering

CONTENT_TYPE = "text/html; charset=utf-8"
_ENVIRONMENT = rendering.environment(Path(__file__).parent / "templates")


def page(template: str, status: int = 200, **shown: object) -> Response:
    """Render a template in the style of these pages."""
    text = _ENVIRONMENT.get_template(f"{template}.html").render(shown)
    return Response(text, status, content_type=CONTENT_TYPE)


def add_headers(response: Response, *, form_action: str = "'none'") -> Response:
    """Keep a response out of caches and indexes; for HTML, set the CSP with `form_action`."""
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["X-Robots-Tag"] = "noindex, nofollow"
    if response.mimetype == "text/html":
        policy = f"{rendering.POLICY}; frame-ancestors 'none'; form-action {form_action}"
        response.headers["Content-Security-Policy"] = policy
    return response
