"""Access to the console's pages: a session, a role, and a CSRF check of forms."""

import hmac
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import ParamSpec, cast
from urllib.parse import urlsplit
from uuid import UUID

from flask import Blueprint, Response, g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from app.api.http import admission, auth, rate_limit
from app.api.http.auth import Access
from app.api.http.services import caller, client_address, prefers_replica, request_id, services
from app.console.frame import browser, forms, rendering
from app.console.frame.forms import View
from app.core.callers import Caller, Role
from app.core.health import probes
from app.core.keys.console_sessions import LONGEST, Token
from app.core.verification import alerts
from app.database import Database
from app.errors import AuditChainBroken, Forbidden, Unauthenticated

_P = ParamSpec("_P")


_BROKEN = (
    "The audit chain is broken: an entry is not what was written. Keep the database as it is and "
    "investigate."
)


def signed_in(
    role: Role, *, whole_tenant: bool = False
) -> Callable[[Callable[_P, AnyResponse]], Callable[_P, AnyResponse]]:
    """Let only sessions of keys with this role, or one above it, reach the view.

    With `whole_tenant` a pinned key is refused. A form must come from a page of the session. A
    browser without a session gets the sign-in page, and then the form again with its input.
    """

    def decorate(view: Callable[_P, AnyResponse]) -> Callable[_P, AnyResponse]:
        shown = prefers_replica(view)

        @wraps(view)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> AnyResponse:
            if not recognise():
                return _sign_in_first()
            holder = caller()
            rate_limit.count_key(holder)
            try:
                holder.require(role)
                if whole_tenant:
                    holder.require_no_pin()
            except Forbidden as error:
                auth.note_refusal(error)
                raise
            if request.method == "POST":
                if not is_own_form():
                    # Another session had shown it: it is shown again, to be sent once more.
                    return rendering.page(
                        "kept", 409, path=request.path, kept=forms.sent().kept_fields()
                    )
            elif (exact := forms.exact_query()) is not None:
                return redirect(exact, 303)
            return shown(*args, **kwargs)

        return auth.mark(checked, Access(role, whole_tenant))

    return decorate


class Pages(Blueprint):
    """Pages and forms of one kind, each for the sessions that `signed_in` lets in."""

    def __init__(self, name: str, prefix: str = "", *, whole_tenant: bool = True) -> None:
        """Take the name and the path; `whole_tenant` pages refuse a pinned key."""
        super().__init__(name, __name__, url_prefix=prefix or None)
        self._whole_tenant = whole_tenant

    def page(
        self,
        path: str,
        role: Role = Role.READ,
        *,
        endpoint: str | None = None,
        methods: Sequence[str] = ("GET",),
    ) -> Callable[[View], View]:
        """Answer GETs of a path."""

        def add(view: View) -> View:
            checked = signed_in(role, whole_tenant=self._whole_tenant)(view)
            self.add_url_rule(path, endpoint or view.__name__, checked, methods=methods)
            return view

        return add

    def form(self, path: str, role: Role, *, again: View | None = None) -> Callable[[View], View]:
        """Answer POSTs to a path; where there is a page to show `again`, by `forms.shown_again`."""

        def add(view: View) -> View:
            tried = view if again is None else forms.shown_again(again)(view)
            self.page(path, role, methods=("POST",))(tried)
            return view

        return add


def require_own_form() -> None:
    """Refuse a form of another site (CSRF); raises `Forbidden`."""
    if not browser.is_from_here():
        raise Forbidden("This form was not sent by a page of the console. Nothing was done.")


def is_own_form() -> bool:
    """Say whether the form is of the session that sends it; raises `Forbidden`."""
    require_own_form()
    return hmac.compare_digest(forms.sent().form_token.encode(), cast(str, g.form_token).encode())


def sign_in(key_text: str) -> Token:
    """Begin a session for a key's caller, in place of the browser's present session.

    Raises `Unauthenticated` and `TenantSuspended`.
    """
    try:
        found = services().keyring.authenticate(key_text, request_id(), client_address())
    except Unauthenticated as error:
        if key_text:
            auth.log_refusal(error)
        raise
    return begin(found, LONGEST)


def begin(found: Caller, longest: timedelta, groups: Sequence[str] = ()) -> Token:
    """Begin a session of at most `longest`, in place of the browser's present one.

    Its token is new: one that somebody put into the browser before opens nothing.
    """
    sign_out()
    token = Token.new(found.tenant_id)
    with services().database.transaction(found.tenant_id) as session:
        untold = token.begin(session, found, longest, groups)
    _report(found.tenant_id, untold)
    return token


def sign_out() -> None:
    """End the session that the browser has, if any."""
    token = browser.read_token()
    if token is not None:
        with services().database.transaction(token.tenant_id) as session:
            untold = token.end(session, request_id(), client_address())
        _report(token.tenant_id, untold)


def _report(tenant_id: UUID, untold: AuditChainBroken | None) -> None:
    if untold is not None:
        alerts.report_break(services().database, tenant_id, untold)


def recognise() -> bool:
    """Load the browser's session into `g`; return whether there is one."""
    token = browser.read_token()
    if token is None:
        return False
    here = services()
    known = here.keyring.known_by(token.digest)
    # Before anything is looked up; whose session it is must be known for that.
    if known is None:
        rate_limit.refuse_address()
    else:
        rate_limit.count_key(known)
    used = not browser.refreshes_itself()
    with here.database.transaction(token.tenant_id) as session:
        found = token.find(session, request_id(), use=used, origin=client_address())
        open_breaks = alerts.count_open(session) if found else 0
    if found is None:
        here.keyring.forget(token.digest)
        return False
    here.keyring.remember(token.digest, found[0])
    g.caller, g.key_name, g.session_id = found
    admission.admitted_by(partial(_require_session, here.database, token, request_id()))
    g.notices = list(_notices(open_breaks))
    g.form_token = token.form_token
    if used and g.caller.person is None:
        here.keyring.note_use(g.caller)
    return True


def _notices(open_breaks: int) -> Iterator[tuple[str, bool]]:
    """Yield the banners of every page, and whether each is grave: stored data is inconsistent."""
    here = services()
    if open_breaks:
        yield _BROKEN, True
    for part in (*here.readiness.parts(), *probes.redis_and_roles(here.bell.presence())):
        if part.banner is not None:
            yield part.banner, False


def _require_session(database: Database, token: Token, request_id: str) -> None:
    """Raise `Unauthenticated` once the session, or its key, has ended."""
    with database.transaction(token.tenant_id) as session:
        if token.find(session, request_id, use=False) is None:
            raise Unauthenticated("Your session has ended. Sign in again.")


def _sign_in_first() -> AnyResponse:
    rate_limit.count_address()
    if browser.refreshes_itself():
        return Response(status=401)
    if request.method != "POST":
        again = services().provider is not None and browser.returns_to_provider()
        place = "console.sign_in.begin" if again else "console.sign_in.ask"
        return redirect(url_for(place, next=request.full_path.rstrip("?")), 303)
    if not browser.is_from_here():
        # Another site's form must not be shown to the user after sign-in, as if it were theirs.
        return redirect(url_for("console.sign_in.ask"), 303)
    return sign_in_page(401, request.path, forms.sent().kept())


def sign_in_page(
    status: int,
    place: str,
    kept: str | None = None,
    *,
    problem: str | None = None,
    away: str | None = None,
    out: str | None = None,
) -> Response:
    """Return the page where one signs in, to go on at `place`, or with the form `kept`.

    `problem` is of the key, `away` of the provider; `out` is where one signs out of that as well.
    """
    issuer = services().settings.openid.issuer
    return rendering.page(
        "sign_in/ask",
        status,
        next=place,
        kept=kept or "",
        has_form=kept is not None,
        problem=problem,
        away=away,
        out=out,
        provider=issuer and urlsplit(issuer).netloc,
    )
