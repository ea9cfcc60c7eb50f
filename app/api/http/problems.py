"""The one place where errors become HTTP: problem details (RFC 9457), and a page for each kind."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog
from flask import Flask, Response, g
from werkzeug.exceptions import HTTPException

from app import errors, metrics
from app.api.http import large_work, promises
from app.api.http.answers import encode
from app.api.http.documentation import MEDIA_TYPE
from app.api.http.services import request_id, services
from app.core.verification import alerts
from app.errors import PROBLEM_TYPES, ServiceError
from app.lib.fair_shares import NoShare
from app.lib.gateway.requests import BodyCutShort, BodyTooSlow

_log = structlog.get_logger(__name__)


def problem(
    slug: str,
    detail: str,
    *,
    members: Mapping[str, Any] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Write one problem (RFC 9457 section 3) as the answer; `members` are added to it."""
    kind = PROBLEM_TYPES[slug]
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
    if promises.on_loop():
        return promises.drop()
    handle = next(_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS)
    return handle(error)


def _service_error(error: ServiceError) -> Response:
    return problem(error.slug, error.detail, members=error.members, headers=error.headers)


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
    return _service_error(error)


def _no_memory_for_body(_: NoShare) -> Response:
    full = "Too many large bodies are being sent; try again in a moment."
    return _service_error(large_work.refused("body_memory", full))


def _body_too_slow(_: BodyTooSlow) -> Response:
    services().tally.add(metrics.WEB_REFUSED, "slow_body")
    return _service_error(errors.RequestTimeout("The body did not arrive in time; send it again."))


def _body_cut_short(_: BodyCutShort) -> Response:
    text = "The body ended too early, or its chunks cannot be read."
    return _service_error(errors.BadRequest(text))


def _unavailable(error: errors.Unavailable) -> Response:
    # The first line of the driver's error, for the log alone.
    reason = str(getattr(error.__cause__, "orig", error.__cause__)).partition("\n")[0]
    _log.warning("database_unavailable", request_id=request_id(), reason=reason)
    return _service_error(error)


def _http(error: HTTPException) -> Response:
    """Answer werkzeug's own errors, with their headers (such as Allow)."""
    if error.code is not None and 300 <= error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect is no problem
    of_status = (slug for slug, kind in PROBLEM_TYPES.items() if kind.status == error.code)
    slug = next(of_status, errors.InternalError.slug)
    kind = PROBLEM_TYPES[slug]
    headers = {name: value for name, value in error.get_headers() if name != "Content-Type"}
    return problem(slug, f"{kind.title}. {kind.advice}", headers=headers)


def _unexpected(error: Exception) -> Response:
    _log.error("unexpected_error", request_id=request_id(), exc_info=error)
    return _service_error(
        errors.InternalError("The service failed while it answered this request.")
    )


_HANDLERS: Mapping[type, Callable[[Any], Response]] = {
    ServiceError: _service_error,
    errors.AuditChainBroken: _audit_chain_broken,
    errors.LogDamaged: _log_damaged,
    errors.Unavailable: _unavailable,
    NoShare: _no_memory_for_body,
    BodyTooSlow: _body_too_slow,
    BodyCutShort: _body_cut_short,
    HTTPException: _http,
    Exception: _unexpected,
}
