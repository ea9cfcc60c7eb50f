"""Signing in with an API key, and out."""

from typing import Any

from flask import Blueprint, g, redirect, request, url_for
from werkzeug.wrappers import Response

from app.api.http.access import rate_limit
from app.api.http.access.auth import public
from app.console.frame import access, browser, forms, rendering
from app.errors import TenantSuspended, Unauthenticated

blp = Blueprint("sign_in", __name__)


@blp.get("/sign-in")
@public
def ask() -> Response:
    """Show the form."""
    asked = request.args.get("next", "")
    place = asked if browser.is_ours(asked) else browser.HOME
    return rendering.page("sign_in", next=place, kept="", has_form=False, problem=None)


@blp.post("/sign-in")
@public
def sign_in() -> Response:
    """Begin a session, and go on to the page, or the form, that asked for it."""
    access.require_own_form()
    # Before the body is read: a request passes here again, uncounted, once a late one has come.
    rate_limit.count_sign_in()
    sent = forms.sent()
    place, kept, has_form = sent.value("next"), sent.value("kept"), bool(sent.value("form"))
    place = place if browser.is_ours(place) else browser.HOME
    fields = forms.read(kept).kept_fields() if has_form else []
    try:
        token = access.sign_in(sent.value("key").strip())
    except (Unauthenticated, TenantSuspended) as refusal:
        shown: dict[str, Any] = {
            "next": place,
            "kept": kept,
            "has_form": has_form,
            "problem": refusal.detail,
        }
        return rendering.page("sign_in", 401, **shown)
    answered: Response = redirect(place, 303)
    if has_form:
        g.form_token = token.form_token
        answered = rendering.page("kept", path=place, kept=fields)
    browser.keep_token(answered, token)
    return answered


@blp.post("/sign-out")
@public
def sign_out() -> Response:
    """End the browser's session; the form may be of an earlier session, or sent twice."""
    access.require_own_form()
    access.sign_out()
    answered = redirect(url_for(".ask"), 303)
    browser.set_cookie(answered, "session", "", 0)
    return answered
