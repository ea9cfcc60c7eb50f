"""Access control: each route declares its rule in one decorator, and a test requires one.

The decorator stands directly below the route, above everything that reads the request, so that
refusals come in one order: 401, then 403 for the role, then 403 for a pin, then what is wrong with
the request, then 404.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import structlog
from flask import g, request

from app.api.http.access import rate_limit
from app.api.http.requests import client_address, parsing
from app.api.http.requests.request_ids import request_id
from app.api.http.services import services
from app.core.callers import Caller, Role
from app.errors import TenantSuspended, Unauthenticated

_log = structlog.get_logger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Access:
    """A route's rule: the role it needs (None: public) and whether a pinned key is refused.

    With `or_link` a share link does in place of a key, and with `or_public` the tenant's own word
    that anyone may read.
    """

    role: Role | None
    whole_tenant: bool = False
    or_link: bool = False
    or_public: bool = False


PUBLIC = Access(None)


def requires(
    role: Role, *, whole_tenant: bool = False, confirmed_by_view: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let only keys with this role, or one above it, reach the view.

    With `whole_tenant` a pinned key is refused too: what the route touches has no agent.
    With `confirmed_by_view` a key that was met before is not looked up again: the view does all of
    its work in one statement that asks whether the key is still good, or calls `confirmed_caller`.
    """

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        access = Access(role, whole_tenant)
        authenticated = _recognised if confirmed_by_view else _looked_up
        return mark(authenticated(_checked(view, role, whole_tenant)), access)

    return decorate


def _checked(view: Callable[_P, _R], role: Role, whole_tenant: bool) -> Callable[_P, _R]:
    """Check the caller's role and pin, and that the request holds no undeclared input."""
    refuse_undeclared = parsing.undeclared_input(view)

    @wraps(view)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        found = caller()
        found.require(role)
        if whole_tenant:
            found.require_no_pin()
        refuse_undeclared()
        return view(*args, **kwargs)

    return checked


def _looked_up(checked: Callable[_P, _R]) -> Callable[_P, _R]:
    """Look the key up before the view."""

    @wraps(checked)
    def looked_up(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        authenticate()
        return checked(*args, **kwargs)

    return looked_up


def _recognised(checked: Callable[_P, _R]) -> Callable[_P, _R]:
    """Accept a key that was met before; look it up only when the request fails."""

    @wraps(checked)
    def recognised(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        g.caller = _known_by(services().keyring.recognise)
        rate_limit.count_key(caller())
        try:
            return checked(*args, **kwargs)
        except Exception:
            # Only a key that is good now is told what is wrong with its request.
            if "caller" in g:
                confirmed_caller()
            raise

    return recognised


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


def caller() -> Caller:
    """Return whose key this request carries; only views behind `requires` have one."""
    return cast(Caller, g.caller)


def confirmed_caller() -> Caller:
    """Return the caller once the key is known to be good now; raises `Unauthenticated`."""
    if caller().confirmed:
        return caller()
    # A refused key belongs to no caller, in the log too.
    del g.caller
    g.caller = _known_by(services().keyring.authenticate)
    return caller()


def mark(view: Callable[_P, _R], access: Access) -> Callable[_P, _R]:
    """Write a route's rule on its view, for the tests and for the documentation."""
    view.access = access  # type: ignore[attr-defined]  # read back by access_rule
    documented: dict[str, object] = (
        {"security": []} if access.role is None else {"x-required-role": str(access.role)}
    )
    if access.or_link:
        documented["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    return parsing.Blueprint.doc(**documented)(view)


def key_was_sent() -> bool:
    """Say whether the request carries a key, good or bad. Raises `Unauthenticated` for two."""
    return bool(_presented_key())


def authenticate() -> Caller:
    """Return whose key the request carries, and count it; raises `Unauthenticated`."""
    g.caller = _known_by(services().keyring.authenticate)
    rate_limit.count_key(caller())
    return caller()


def key_holder() -> Caller | None:
    """Return whose key the request carries; None for none, or one that is not good.

    For routes that are open without a key: a bad key is not refused there.
    """
    try:
        return services().keyring.authenticate(_presented_key(), request_id())
    except Unauthenticated:
        log_refusal()
        return None
    except TenantSuspended:
        return None


def _known_by(ask: Callable[[str, str], Caller]) -> Caller:
    """Ask whose key the request carries; a key that is not good counts against its sender."""
    key_text = _presented_key()
    try:
        return ask(key_text, request_id())
    except Unauthenticated:
        if key_text:
            rate_limit.count_refusal()
            log_refusal()
        else:
            rate_limit.count_address()
        raise
    except TenantSuspended:
        rate_limit.count_refusal()
        raise


def log_refusal() -> None:
    """Log where a key that is not good came from, and never the key.

    Requests beyond an address's limit (429) have a line in the access log alone.
    """
    route = request.url_rule.rule if request.url_rule else "(none)"
    _log.warning(
        "key_refused", request_id=request_id(), address=client_address.address(), route=route
    )


def _presented_key() -> str:
    """Return the key's text from `Authorization: Bearer` or `x-api-key`."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    plain = request.headers.get("x-api-key", "").strip()
    if bearer and plain and not secrets.compare_digest(bearer.encode(), plain.encode()):
        raise Unauthenticated("Authorization and x-api-key carry different keys; send one.")
    return bearer or plain
