"""Signing in with an API key or at the OpenID provider, and out; who is signed in; a person."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, g, redirect, request, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response as AnyResponse

from app import ids
from app.api.http import rate_limit
from app.api.http.auth import public
from app.api.http.paging import open_position, seal_position
from app.api.http.services import caller, client_address, request_id, services, transaction
from app.console.frame import access, browser, forms, lists, rendering
from app.console.frame.access import Pages
from app.core.callers import Caller, Person, Role
from app.core.keys import console_sessions, groups, keys
from app.core.keys.console_sessions import OPERATOR_LONGEST, OperatorToken, SignedIn
from app.core.keys.groups import Membership
from app.errors import NotFound, TenantSuspended, Unauthenticated
from app.lib.openid_connect import Asked, Identity, NotSignedIn, Provider, ProviderAway

blp = Blueprint("sign_in", __name__)

CALLBACK = "/console/sign-in/provider/answer"
"""The redirect URI that the provider must know, behind BASE_URL."""
_MINUTES = 10
_SHOWN_GROUPS = 50
_EXPIRED = "This sign-in was begun too long ago, or in another browser. Begin again."


@blp.get("/sign-in")
@public
def ask() -> Response:
    """Show the form."""
    provider = services().provider
    out = None
    if provider is not None and "out" in request.args:
        out = provider.end_session_url(f"{services().settings.base_url}{url_for('.ask')}")
    return access.sign_in_page(200, browser.go_on(request.args.get("next", "")), out=out)


@blp.post("/sign-in")
@public
def sign_in() -> AnyResponse:
    """Begin a session, and go on to the page, or the form, that asked for it."""
    access.require_own_form()
    # Before the body is read: a request passes here again, uncounted, once a late one has come.
    rate_limit.count_sign_in()
    sent = forms.sent()
    place = browser.go_on(sent.value("next"))
    kept = sent.value("kept") if sent.value("form") else None
    fields = [] if kept is None else forms.read(kept).kept_fields()
    key_text = sent.value("key").strip()
    if console_sessions.is_operator_key(key_text):
        return _enter_as_operator(key_text)
    try:
        token = access.sign_in(key_text)
    except (Unauthenticated, TenantSuspended) as refusal:
        return access.sign_in_page(401, place, kept, problem=refusal.detail)
    answered: AnyResponse = redirect(place, 303)
    if kept is not None:
        g.form_token = token.form_token
        answered = rendering.page("kept", path=place, kept=fields)
    browser.keep_token(answered, token)
    return answered


@blp.post("/sign-in/again")
@public
def again() -> Response:
    """Show the form that was not sent, once the browser has a session again."""
    access.require_own_form()
    sent = forms.sent()
    place, kept = browser.go_on(sent.value("next")), sent.value("kept")
    fields = forms.read(kept).kept_fields()
    if not access.recognise():
        return access.sign_in_page(401, place, kept)
    return rendering.page("kept", path=place, kept=fields)


@blp.get("/sign-in/provider")
@public
def begin() -> AnyResponse:
    """Send the browser to the provider; it comes back to `answer`.

    With `choose` another tenant may be chosen than that of the browser's last session.
    """
    provider, asked = _provider(), Asked.new()
    place = browser.go_on(request.args.get("next", ""))
    try:
        answered = redirect(provider.begin(asked), 303)
    except ProviderAway as error:
        return _away(error, place)
    token = browser.read_token()
    again_in = None if token is None or "choose" in request.args else token.tenant_id.hex
    kept = {"asked": vars(asked), "next": place, "tenant": again_in}
    browser.set_cookie(answered, "asked", _seal("asked", kept), _MINUTES * 60)
    return answered


@blp.get("/sign-in/provider/answer")
@public
def answer() -> AnyResponse:
    """Begin the session of whom the provider signed in; let them choose among several tenants."""
    provider = _provider()
    rate_limit.count_sign_in()
    kept = _open("asked", request.cookies.get(browser.cookie_name("asked"), ""))
    if kept is None:
        return access.sign_in_page(401, browser.HOME, away=_EXPIRED)
    try:
        who = provider.finish(Asked(**kept["asked"]), request.args)
    except NotSignedIn as error:
        return access.sign_in_page(401, kept["next"], away=f"You are not signed in. {error}")
    except ProviderAway as error:
        return _away(error, kept["next"])
    found = _memberships(who)
    same = [each for each in found if each.tenant_id.hex == kept["tenant"]]
    if len(found) == 1 or same:
        return _enter(who, (same or found)[0], kept["next"])
    if not found:
        return _nowhere(who)
    known = {name for each in found for name in each.groups}
    who = Identity(who.issuer, who.subject, who.email, who.name, sorted(known))
    state = kept["asked"]["state"]
    shown = [{"id": ids.text("ten", each.tenant_id), **vars(each)} for each in found]
    sealed = _seal("who", {"who": vars(who), "next": kept["next"], "state": state})
    return rendering.page("sign_in/tenants", who=sealed, found=shown, person=who.email or who.name)


@blp.post("/sign-in/tenant")
@public
def enter() -> AnyResponse:
    """Begin the session in the tenant that a person chose."""
    access.require_own_form()
    sent = forms.sent()
    # What was sealed for one browser's sign-in is of no use in another.
    asked = _open("asked", request.cookies.get(browser.cookie_name("asked"), ""))
    kept = _open("who", sent.value("who"))
    if asked is None or kept is None or kept["state"] != asked["asked"]["state"]:
        return access.sign_in_page(401, browser.HOME, away=_EXPIRED)
    who, tenant_id = Identity(**kept["who"]), ids.parse("ten", sent.value("tenant"))
    found = [each for each in _memberships(who) if each.tenant_id == tenant_id]
    return _enter(who, found[0], kept["next"]) if found else _nowhere(who)


@blp.post("/sign-out")
@public
def sign_out() -> AnyResponse:
    """End the browser's session; the form may be of an earlier session, or sent twice."""
    access.require_own_form()
    access.sign_out()
    out = "1" if browser.returns_to_provider() else None
    answered = redirect(url_for(".ask", out=out), 303)
    browser.forget(answered)
    return answered


def _enter_as_operator(key_text: str) -> AnyResponse:
    with services().database.across_tenants() as session:
        token = OperatorToken.enter(session, key_text, client_address())
    if token is None:
        text = "This operator's key was used, or has expired: `console-key` makes another."
        return access.sign_in_page(401, browser.HOME, problem=text)
    answered = redirect(url_for("console.operator.index"), 303)
    browser.set_cookie(answered, "operator", token.text, int(OPERATOR_LONGEST.total_seconds()))
    return answered


def _provider() -> Provider:
    found = services().provider
    if found is None:
        raise NotFound("People do not sign in by a provider here: OIDC_ISSUER is not set.")
    return found


def _away(error: ProviderAway, place: str) -> Response:
    text = f"The sign-in provider does not answer as it should. {error} An API key works as before."
    return access.sign_in_page(503, place, away=text)


def _memberships(who: Identity) -> Sequence[Membership]:
    with services().database.across_tenants() as session:
        return groups.memberships(session, who.groups)


def _enter(who: Identity, member: Membership, place: str) -> AnyResponse:
    person = Person(who.issuer, who.subject, who.name, who.email)
    caller = Caller(
        member.tenant_id,
        person.id,
        member.role,
        None,
        request_id(),
        origin=client_address(),
        person=person,
    )
    longest = timedelta(seconds=services().settings.openid.session_seconds)
    token = access.begin(caller, longest, member.groups)
    answered = redirect(place, 303)
    browser.keep_token(answered, token, by_provider=True)
    browser.set_cookie(answered, "asked", "", 0)
    return answered


def _nowhere(who: Identity) -> Response:
    told = services().settings.openid
    return rendering.page(
        "sign_in/nowhere",
        403,
        person=who.email or who.name,
        member_of=who.groups[:_SHOWN_GROUPS],
        claim=told.groups_claim,
        provider=told.issuer,
    )


def _seal(what: str, kept: dict[str, Any]) -> str:
    """Seal what a browser keeps until a sign-in is done; it ends after ten minutes."""
    told = json.dumps({**kept, "until": time.time() + _MINUTES * 60})
    return seal_position(told, f"console/sign-in/{what}")


def _open(what: str, text: str) -> dict[str, Any] | None:
    """Return what was sealed; None for any other text, and once its time is over."""
    told = open_position(text, f"console/sign-in/{what}")
    kept: dict[str, Any] = {"until": 0} if told is None else json.loads(told)
    return kept if time.time() < kept["until"] else None


people_blp = Pages("people")


def _shown(found: SignedIn) -> dict[str, Any]:
    named = {"id": ids.text("con", found.id), "caller_id": ids.of_caller(found.caller_id)}
    return vars(found) | named


def _own_id() -> str:
    return ids.text("con", g.session_id)


def _groups(session: Session, *_: object) -> dict[str, Any]:
    """Return which groups may sign in, and whose session this is."""
    roles = groups.of_tenant(session, caller().tenant_id).items()
    shown = [{"name": name, "role": role} for name, role in roles]
    return {"own": _own_id(), "roles": shown}


lists.serve(
    people_blp,
    "people",
    lambda session, _, *where: console_sessions.rows(session, caller().tenant_id, *where),
    "/sign-ins",
    Role.ADMIN,
    show=_shown,
    named=lambda _: (),
    beside=_groups,
)


@people_blp.form("/sign-ins/end", Role.ADMIN)
def end_all() -> AnyResponse:
    """End every session but one's own."""
    return _end(".index")


@people_blp.form("/sign-ins/<sign_in_id>/end", Role.ADMIN)
def end(sign_in_id: UUID | None) -> AnyResponse:
    """End one session; one's own ends by signing out."""
    return _end(".index", one=sign_in_id or UUID(int=0))


@people_blp.page("/people/<person_id>")
def show(person_id: UUID | None) -> Response:
    """Show a person, and their sessions."""
    tenant_id = caller().tenant_id
    with transaction() as session:
        person = groups.person(session, tenant_id, person_id)
        good = console_sessions.rows(session, tenant_id, None, 50, of=person_id)
        minted = keys.current(session, caller(), 50, created_by=person.id)
    return rendering.page(
        "people/one",
        person=person,
        person_id=ids.text("usr", person.id),
        signed_in=[_shown(each) for each in good],
        minted=[keys.represent(each) for each in minted],
        own=_own_id(),
    )


@people_blp.form("/people/<person_id>/end", Role.ADMIN)
def end_of_person(person_id: UUID | None) -> AnyResponse:
    """End every session of a person but one's own."""
    return _end(".show", of=person_id or UUID(int=0))


def _end(page: str, *, one: UUID | None = None, of: UUID | None = None) -> AnyResponse:
    end = partial(console_sessions.end_some, one=one, of=of)
    count = forms.do(end, g.session_id)
    many = "1 session was" if count == 1 else f"{count:,} sessions were"
    return rendering.done(page, f"{many} ended.")
