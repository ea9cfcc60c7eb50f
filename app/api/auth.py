"""Who may call a route: each says so in one decorator, and a test holds every route to it.

The decorator stands directly below the route, above everything that reads the request, so that
refusals come in one order: 401, then 403 for the role, then 403 for a pin, then what is wrong with
the request, then 404.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from flask import g, request

from app.api import limits, parsing
from app.api.request_ids import request_id
from app.api.services import services
from app.core import keys
from app.core.callers import Caller, Role
from app.errors import Unauthenticated

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
    role: Role, *, whole_tenant: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let only keys with this role, or one above it, reach the view.

    With `whole_tenant` a pinned key is refused too: what the route touches has no agent.
    """

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        refuse_undeclared = parsing.undeclared_input(view)

        @wraps(view)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            found = authenticate()
            found.require(role)
            if whole_tenant:
                found.require_no_pin()
            refuse_undeclared()
            return view(*args, **kwargs)

        return mark(checked, Access(role, whole_tenant))

    return decorate


def public(view: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let anybody reach the view; such routes stand on a short list in the tests."""

    @wraps(view)
    def counted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        limits.count_address()
        return view(*args, **kwargs)

    return mark(counted, PUBLIC)


def access_rule(view: Callable[..., object]) -> Access | None:
    """Return the rule that a view carries, or None when nobody decided."""
    return getattr(view, "access", None)


def caller() -> Caller:
    """Return whose key this request carries; only views behind `requires` have one."""
    return cast(Caller, g.caller)


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
    key_text = _presented_key()
    try:
        found = keys.authenticate(services().database, key_text, request_id())
    except Unauthenticated:
        if key_text:
            limits.count_refusal()
        else:
            limits.count_address()
        raise
    g.caller = found
    limits.count_key(found.key_id)
    return found


def _presented_key() -> str:
    """Return the key's text from `Authorization: Bearer` or `x-api-key`."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    plain = request.headers.get("x-api-key", "").strip()
    if bearer and plain and not secrets.compare_digest(bearer.encode(), plain.encode()):
        raise Unauthenticated("Authorization and x-api-key carry different keys; send one.")
    return bearer or plain
