"""The one place where errors become HTTP: problem details (RFC 9457), and a page for each kind."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog
from flask import Flask, Response, g
from werkzeug.exceptions import HTTPException

from app import errors, metrics
from app.api.http.access.rate_limit import RateLimited
from app.api.http.problem_kinds import KINDS
from app.api.http.requests import large_bodies
from app.api.http.requests.parsing import UnsupportedCoding
from app.api.http.requests.request_ids import request_id
from app.api.http.responses.json_responses import encode
from app.api.http.responses.long_poll import TooManyWaiting
from app.api.http.services import services
from app.core.verification import alerts
from app.lib.fair_shares import NoShare
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow

MEDIA_TYPE = "application/problem+json"

_log = structlog.get_logger(__name__)


_HTTP_SLUGS = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    412: "precondition-failed",
    413: "body-too-large",
    414: "uri-too-long",
    415: "unsupported-media-type",
    416: "range-not-satisfiable",
    429: "rate-limited",
    431: "headers-too-large",
}

# Headers by exact error type; errors derived from these have none.
_HEADERS: Mapping[type[errors.ServiceError], Mapping[str, str]] = {
    errors.Unauthenticated: {"WWW-Authenticate": "Bearer"},
    UnsupportedCoding: {"Accept-Encoding": "identity"},
    errors.LogPending: {"Retry-After": "1"},
    errors.Unavailable: {"Retry-After": "2"},
    errors.Busy: {"Retry-After": "5"},
    errors.PackFailed: {"Retry-After": "60"},
    TooManyWaiting: {"Retry-After": "5"},
}

_INTERNAL = "The service failed while it answered this request."


def problem(
    slug: str,
    detail: str,
    *,
    members: Mapping[str, Any] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Write one problem (RFC 9457 section 3) as the answer; `members` are added to it."""
    kind = KINDS[slug]
    body = {
        "type": f"{services().settings.base_url}/problems/{slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "request_id": request_id(),
        **members,
    }
    g.problem = slug
    return Response(encode(body), kind.status, dict(headers), content_type=MEDIA_TYPE)


def register(app: Flask) -> None:
    """Answer every error of this application as a problem."""
    app.register_error_handler(Exception, answer_error)


def answer_error(error: Exception) -> Response:
    """Answer one error as a problem, or the redirect that werkzeug raised."""
    handle = next(_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS)
    return handle(error)


def _service_error(error: errors.ServiceError) -> Response:
    headers = _HEADERS.get(type(error), {})
    return problem(error.slug, error.detail, members=error.members, headers=headers)


def _audit_chain_broken(error: errors.AuditChainBroken) -> Response:
    # A caller's kept head may be invented, so it must not raise an alarm's counter.
    if not isinstance(error, errors.KeptHeadContradicted):
        services().tally.add(metrics.CHAINS_BROKEN)
    if "caller" not in g:
        # A holder of a share link must not learn where the tenant's chain is broken.
        return problem(error.slug, "What this would enter into the audit chain cannot be entered.")
    return _service_error(error)


def _log_damaged(error: errors.LogDamaged) -> Response:
    here = services()
    here.tally.add(metrics.LOG_DAMAGED)
    # Public requests may meet the damage at any rate; the breaker bounds how often it is recorded.
    if here.damage.admits():
        here.damage.failed()
        alerts.report_log(here.database, error)
    return problem(error.slug, error.detail, headers={"Cache-Control": "no-store"})


def _pack_unreadable(error: errors.PackUnreadable) -> Response:
    return problem(error.slug, error.detail, headers={"Retry-After": str(error.retry_after)})


def _rate_limited(error: RateLimited) -> Response:
    spent = error.spent
    return problem(
        "rate-limited",
        f"More than {spent.rate.limit} requests {spent.scope} in {spent.rate.seconds} seconds; "
        f"come back in {spent.resets_in} seconds.",
        headers={"Retry-After": str(spent.resets_in), **spent.headers()},
    )


def _no_memory_for_body(_: NoShare) -> Response:
    full = "Too many large bodies are being sent; try again in a moment."
    return _service_error(large_bodies.refused("body_memory", full))


def _body_too_slow(_: BodyTooSlow) -> Response:
    services().tally.add(metrics.WEB_REFUSED, "slow_body")
    return problem("request-timeout", "The body did not arrive in time; send it again.")


def _body_cut_short(_: BodyCutShort) -> Response:
    return problem("bad-request", "The body ended too early, or its chunks cannot be read.")


def _unavailable(error: errors.Unavailable) -> Response:
    _log.warning(
        "database_unavailable", request_id=request_id(), reason=_first_line(error.__cause__)
    )
    return _service_error(error)


def _http(error: HTTPException) -> Response:
    """Answer werkzeug's own errors, with their headers (such as Allow)."""
    if error.code is not None and 300 <= error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect is no problem
    slug = _HTTP_SLUGS.get(error.code or 500, "internal-error")
    headers = {name: value for name, value in error.get_headers() if name != "Content-Type"}
    return problem(slug, f"{KINDS[slug].title}. {KINDS[slug].advice}", headers=headers)


def _unexpected(error: Exception) -> Response:
    _log.error("unexpected_error", request_id=request_id(), exc_info=error)
    return problem("internal-error", _INTERNAL)


def _first_line(cause: BaseException | None) -> str:
    """Return the first line of the driver's error, for the log alone."""
    return str(getattr(cause, "orig", cause)).partition("\n")[0]


_HANDLERS: Mapping[type, Callable[[Any], Response]] = {
    errors.ServiceError: _service_error,
    errors.AuditChainBroken: _audit_chain_broken,
    errors.LogDamaged: _log_damaged,
    errors.PackUnreadable: _pack_unreadable,
    errors.Unavailable: _unavailable,
    RateLimited: _rate_limited,
    NoShare: _no_memory_for_body,
    BodyTooSlow: _body_too_slow,
    BodyCutShort: _body_cut_short,
    HTTPException: _http,
    Exception: _unexpected,
}
