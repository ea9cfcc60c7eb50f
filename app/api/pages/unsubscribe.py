"""The unsubscribe link of digests and alerts (RFC 8058 one-click), which needs no API key.

GET changes nothing, since mail scanners follow links; it shows a button. POST clears the address
that the mail went to, if it is still set. The answer is always the same, so that a link does not
reveal the tenant's present address.
"""

from collections.abc import Callable
from functools import partial

from flask import Response, after_this_request, g
from sqlalchemy.orm import Session

from app.api.http.auth import public
from app.api.http.documentation import Blueprint
from app.api.http.services import request_id, services
from app.api.pages import private_page
from app.core.digests import alerts, letters, schedule
from app.core.digests.letters import Subscription
from app.errors import NotFound

blp = Blueprint(
    "unsubscribe",
    __name__,
    url_prefix="/unsubscribe",
    description="Unsubscribing from the digest by the link in each mail.",
)

_PAGE = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


@blp.route("/<token>", methods=["GET"])
@public
@blp.response(200)
@blp.doc(responses=_PAGE)
def ask(token: str) -> Response:
    """Show the button that ends the digest

    Reading this page changes nothing.
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
    named = _named(token)
    if named is None:
        return _page("dead", 404)
    subscription, end_it = named
    with services().database.transaction(subscription.tenant_id) as session:
        end_it(session, subscription, request_id())
    return _page("done", 200)


def _named(token: str) -> tuple[Subscription, Callable[[Session, Subscription, str], bool]] | None:
    """Return whose mails a token is of, and what ends them: digests, or alerts."""
    for kind, end_it in (("digests", schedule.clear), ("alerts", alerts.leave)):
        found = letters.read_token(services().settings.master_keys, token, kind)
        if found is not None:
            return found, end_it
    return None


def _page(name: str, status: int) -> Response:
    after_this_request(partial(private_page.add_headers, form_action="'self'"))
    if name == "dead":
        g.problem = NotFound.slug
    return private_page.page(f"unsubscribe/{name}", status)
