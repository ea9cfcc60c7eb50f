"""Access control: each route declares its rule as one decorator, and a test requires one.

`Routes` puts it around everything that reads the request. So errors come in one order: 401, 403 for
the role, 403 for a pin, then request validation, then 404.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import structlog
from flask import Flask, g, request

from app import metrics
from app.api.http import admission, parsing, promises, rate_limit
from app.api.http.documentation import Blueprint
from app.api.http.services import caller, client_address, request_id, services
from app.core.callers import Caller, Role
from app.core.keys.keyring import KeyEnded
from app.core.verification import alerts
from app.errors import (
    AuditChainBroken,
    BadRequest,
    InsufficientRole,
    PinnedKey,
    ServiceError,
    TenantSuspended,
    Unauthenticated,
    WiderThanPin,
)
from app.lib.crypto import api_keys

_log = structlog.get_logger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Access:
    """A route's rule: the role it needs (None: public) and whether a pinned key is refused.

    With `or_link` a share link replaces the key. An `operator`'s pages open for no key at all.
    """

    role: Role | None
    whole_tenant: bool = False
    or_link: bool = False
    operator: bool = False


PUBLIC = Access(None)


def requires(
    role: Role, *, whole_tenant: bool = False, confirmed_by_view: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let only keys with this role, or one above it, reach the view.

    With `whole_tenant` a pinned key is refused too: the route's resources belong to no agent.
    With `confirmed_by_view` a cached key is not looked up again: the view does all of its work in
    one statement that also checks that the key is still valid, or calls `confirmed_caller`.
    """

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        refuse_undeclared = parsing.undeclared_input(view)

        @wraps(view)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if confirmed_by_view:
                g.caller = _recognised()
                rate_limit.count_key(caller())
            else:
                authenticate()
            try:
                caller().require(role)
                if whole_tenant:
                    caller().require_no_pin()
                refuse_undeclared()
                return view(*args, **kwargs)
            except Exception as error:
                # Only a key that is valid now gets the details of the error.
                if "caller" in g:
                    confirmed_caller()
                    note_refusal(error)
                raise

        checked.needs_key = True  # type: ignore[attr-defined]  # read back by body_limit
        return mark(checked, Access(role, whole_tenant))

    return decorate


READ, WRITE, ADMIN = requires(Role.READ), requires(Role.WRITE), requires(Role.ADMIN)
# Of what belongs to the whole tenant.
READ_TENANT = requires(Role.READ, whole_tenant=True)
WRITE_TENANT = requires(Role.WRITE, whole_tenant=True)
ADMIN_TENANT = requires(Role.ADMIN, whole_tenant=True)
WRITE_UNCONFIRMED = requires(Role.WRITE, confirmed_by_view=True)


def body_limit(app: Flask, environ: dict[str, Any]) -> int:
    """Return how many bytes of a long body are read before its view is called.

    None for a request that the view refuses without it: of no route, or of a caller without a key
    where one is needed.
    """
    with app.request_context(environ):
        view = app.view_functions.get(request.endpoint or "")
        if view is None:
            return 0
        if getattr(view, "needs_key", False):
            key_text = presented_key()
            try:
                if key_text and services().keyring.known(key_text) is None:
                    rate_limit.refuse_unknown_key()
                services().keyring.recognise(key_text, request_id(), client_address())
            except ServiceError:
                return 0
        return parsing.body_limit()


def public(view: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make the view public; the tests list all such routes."""

    @wraps(view)
    def counted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        rate_limit.count_address()
        return view(*args, **kwargs)

    return mark(counted, PUBLIC)


def probed(view: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make the view public, without a rate limit: a load balancer must not be refused."""
    return mark(view, PUBLIC)


def access_rule(view: Callable[..., object]) -> Access | None:
    """Return the rule of a view, or None where none is declared."""
    return getattr(view, "access", None)


def confirmed_caller() -> Caller:
    """Return the caller, after a check that its key is valid now; raises `Unauthenticated`."""
    if caller().confirmed:
        return caller()
    promises.leave()
    # A refused key belongs to no caller, in the log too.
    del g.caller
    g.caller = _known_by(services().keyring.authenticate)
    return caller()


def mark(view: Callable[_P, _R], access: Access) -> Callable[_P, _R]:
    """Attach a route's access rule to its view, for the tests and the OpenAPI document."""
    view.access = access  # type: ignore[attr-defined]  # read back by access_rule
    documented: dict[str, object] = (
        {"security": []} if access.role is None else {"x-required-role": str(access.role)}
    )
    if access.or_link:
        documented["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    return Blueprint.doc(**documented)(view)


def count() -> None:
    """Count a request that may need no key, before anything is looked up; raises `RateLimited`.

    A key that this process knows pays for it, else the client's address.
    """
    known = services().keyring.known(presented_key())
    if known is None:
        rate_limit.count_address()
    else:
        rate_limit.count_key(known)


def authenticate() -> Caller:
    """Return the caller of the request's key, and count the request; raises `Unauthenticated`.

    Beyond its limit a key that this process knows is refused without a look-up.
    """
    known = services().keyring.known(presented_key())
    if known is not None:
        g.caller = known
        rate_limit.count_key(known)
        # Refused, it is no caller, in the log too.
        del g.caller
    g.caller = _known_by(services().keyring.authenticate)
    rate_limit.count_key(caller())
    return caller()


def key_holder() -> Caller | None:
    """Return the caller of the request's key; None without a valid key.

    For routes that are open without a key: an invalid key is not refused there.
    """
    try:
        return services().keyring.authenticate(presented_key(), request_id(), client_address())
    except Unauthenticated as error:
        log_refusal(error)
        return None
    except TenantSuspended:
        return None


def _recognised() -> Caller:
    """Return the caller of the request's key, from the cache if it is there."""
    keyring, key_text = services().keyring, presented_key()
    known = keyring.known(key_text)
    if known is None:
        return _known_by(keyring.recognise)
    named = (key_text, request_id(), client_address())
    admission.admitted_by(partial(keyring.authenticate, *named))
    return keyring.used(known, *named[1:])


def _known_by(ask: Callable[[str, str, str], Caller]) -> Caller:
    """Return the caller that `ask` finds; an invalid key counts against the client's address."""
    key_text = presented_key()
    if services().keyring.known(key_text) is None:
        promises.leave()
        if key_text:
            rate_limit.refuse_unknown_key()
    try:
        found = ask(key_text, request_id(), client_address())
    except Unauthenticated as error:
        if key_text:
            rate_limit.count_refusal(looked_up=api_keys.well_formed(key_text))
            log_refusal(error)
        else:
            rate_limit.count_address()
        raise
    except TenantSuspended:
        rate_limit.count_refusal(looked_up=True)
        raise
    again = partial(services().keyring.authenticate, key_text, request_id(), client_address())
    admission.admitted_by(again)
    return found


def log_refusal(error: Unauthenticated) -> None:
    """Log the client's address and the route of a refused key, never the key itself.

    A key that was revoked or has expired is also entered into its tenant's audit chain; an unknown
    one has no tenant. Requests beyond an address's limit (429) are in the access log only.
    """
    route = request.url_rule.rule if request.url_rule else "(none)"
    _log.warning("key_refused", request_id=request_id(), address=client_address(), route=route)
    if isinstance(error, KeyEnded):
        _enter(error.former, f"{error.state}-key")


def note_refusal(error: Exception) -> None:
    """Enter into the audit chain that the caller's key was refused for its role or pin."""
    if isinstance(error, InsufficientRole | PinnedKey | WiderThanPin):
        _enter(caller(), error.slug)


def _enter(refused: Caller, reason: str) -> None:
    route = request.url_rule.rule if request.url_rule else "(none)"
    here = services()
    try:
        here.refusals.note(refused, reason, f"{request.method} {route}"[:200])
    except AuditChainBroken as error:
        # The caller is refused all the same.
        here.tally.add(metrics.CHAINS_BROKEN)
        alerts.report_break(here.database, refused.tenant_id, error)


def has_two_credentials(environ: Mapping[str, Any]) -> bool:
    """Say whether a request has a key in either header."""
    return bool(environ.get("HTTP_AUTHORIZATION") and environ.get("HTTP_X_API_KEY"))


def refuse_two_credentials() -> None:
    """Raise `BadRequest` for two credentials: they could count as one caller and act as another."""
    if has_two_credentials(request.environ):
        raise BadRequest("Send Authorization or x-api-key, not both.")


def key_text(environ: Mapping[str, Any]) -> str:
    """Return the text of a request's key, valid or not; nothing where it carries none."""
    scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
    plain: str = environ.get("HTTP_X_API_KEY", "")
    return (bearer if scheme.lower() == "bearer" else plain).strip()


def presented_key() -> str:
    """Return the text of this request's key, as `key_text`."""
    # werkzeug's headers cost more than all the rest of a look-up.
    return key_text(request.environ)
