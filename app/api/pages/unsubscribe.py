"""The link at the end of every digest: one click, without a key, and no more mail.

Reading it changes nothing, for mail programs and scanners open links on their own; it shows a
button. A POST, from the button or from a mail program (RFC 8058), clears the address that the mail
went to, if it is still that. What it answers does not depend on that, so a link tells nobody
whether somebody has come before or the address is another by now.
"""

import base64
import hashlib
from pathlib import Path

from flask import Response, after_this_request, g, render_template

from app.api.http.access.auth import public
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.request_ids import request_id
from app.api.http.services import services
from app.core.digests import subscriptions, tokens
from app.core.digests.tokens import Subscription
from app.errors import NotFound

blp = Blueprint(
    "unsubscribe",
    __name__,
    template_folder="templates",
    url_prefix="/unsubscribe",
    description="Ending the digest by the link in each of its mails.",
)

_CONTENT_TYPE = "text/html; charset=utf-8"
_STYLE = (Path(__file__).parent / "templates" / "shared" / "page.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'"
)
_PAGE = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


@blp.route("/<token>", methods=["GET"])
@public
@blp.response(200)
@blp.doc(responses=_PAGE)
def ask(token: str) -> Response:
    """Show the button that ends the digest

    Nothing is changed by reading this, however often.
    """
    if _named(token) is None:
        return _page("dead", 404)
    return _page("ask", 200)


@blp.route("/<token>", methods=["POST"])
@public
@blp.response(200)
@blp.doc(responses=_PAGE)
def end(token: str) -> Response:
    """End the digest (RFC 8058)

    Clears the tenant's `notification_email` if it is still the address that the mail went to, and
    leaves an entry in the audit chain.
    """
    subscription = _named(token)
    if subscription is None:
        return _page("dead", 404)
    with services().database.transaction(subscription.tenant_id) as session:
        subscriptions.clear(session, subscription, request_id())
    return _page("done", 200)


def _named(token: str) -> Subscription | None:
    return tokens.read(services().settings.master_keys, token)


def _page(name: str, status: int) -> Response:
    after_this_request(_add_headers)
    if name == "dead":
        g.problem = NotFound.slug
    page = render_template(f"unsubscribe/{name}.html", style=_STYLE)
    return Response(page, status, content_type=_CONTENT_TYPE)


def _add_headers(response: Response) -> Response:
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["X-Robots-Tag"] = "noindex, nofollow"
    response.headers["Content-Security-Policy"] = _POLICY
    return response
