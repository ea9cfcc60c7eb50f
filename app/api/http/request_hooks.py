"""Hooks around every request: size limits, headers, access log, metrics; and path parameters."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog
from flask import Flask, Response, g, request
from werkzeug.exceptions import NotFound, RequestHeaderFieldsTooLarge, RequestURITooLarge
from werkzeug.routing import BaseConverter, UnicodeConverter

from app import ids, metrics
from app.api.http import auth, promises, rate_limit
from app.api.http.services import REQUEST_ID, Services, client_address, request_id, services
from app.errors import BadRequest
from app.lib.gateway.answers import Application
from app.lib.gateway.gateway import READY, WAIT
from app.settings import Settings

_access = structlog.get_logger("access")
# /v1/keys/self and /v1/findings/batch.
_WORDS = ("self", "batch", "expired")


MAX_HEADERS = 16 * 1024
MAX_URL = 8 * 1024

HOST = re.compile(r"(?:[A-Za-z0-9._~%!$&'()*+;=-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TWO_YEARS = 63_072_000
# The headers that are one request's alone.
_OF_REQUEST = "record-service.headers"

# Callers may invent methods, and each would be a time series.
_METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"))


def register(app: Flask, settings: Settings) -> None:
    """Register the hooks around every request of this application."""

    def leave(response: Response) -> Response:
        request.environ[_OF_REQUEST] = {REQUEST_ID: request_id(), **rate_limit.headers()}
        if promise := promises.promised():
            promise.record = partial(_record, services(), g.began, _answer())
        elif not request.environ.get(WAIT) and not promises.on_loop():
            _record(services(), g.began, _answer(), response.status_code)
        return response

    app.before_request(_enter)
    app.after_request(leave)
    app.wsgi_app = _with_headers(app.wsgi_app, _fixed_headers(settings))  # type: ignore[assignment, method-assign]  # as Flask says


def _with_headers(application: Application, fixed: Mapping[str, str]) -> Application:
    """Give every answer these headers and those of its request, unless it has its own.

    Here, since each header that is set in Flask costs a microsecond more.
    """

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *failed: Any) -> Any:
            own = {name.lower() for name, _ in headers}
            all_have = {**fixed, **environ.get(_OF_REQUEST, {})}
            if "access-control-allow-origin" in own:
                del all_have["Cross-Origin-Resource-Policy"]
            more = [each for each in all_have.items() if each[0].lower() not in own]
            return start_response(status, headers + more, *failed)

        return application(environ, start)

    return call


def _fixed_headers(settings: Settings) -> dict[str, str]:
    """Return the headers that every answer has, unless it says otherwise."""
    fixed = {**_HEADERS, "Cache-Control": "no-store"}
    if settings.base_url.startswith("https:"):
        fixed["Strict-Transport-Security"] = f"max-age={_TWO_YEARS}"
    return fixed


def _enter() -> None:
    # Read once: each use of Flask's `request` looks it up.
    environ = request.environ
    g.began = environ.get(READY) or time.perf_counter()
    if connection := environ.get("gunicorn.socket"):
        # Read and written in the thread, which a silent client must not hold.
        connection.settimeout(services().settings.web.body_seconds)
    auth.refuse_two_credentials()
    # There is one Host, and it is one (RFC 9112 section 3.2). Two are joined by a comma; HTTP/1.0
    # needs none.
    host = environ.get("HTTP_HOST", "")
    optional = not host and environ.get("SERVER_PROTOCOL") == "HTTP/1.0"
    if not optional and HOST.fullmatch(host) is None:
        raise BadRequest("Send one Host header: a name or an address, and a port if any.")
    # The router matches a path whatever number of slashes it begins with; and one that is escaped
    # is no separator (RFC 3986 section 2.2), as what stands before the service may take it. An id
    # of its owner's is the rest of its path, and may contain any character.
    sent = environ.get("RAW_URI", "").partition("?")[0].partition("/by-external-id/")[0]
    if environ.get("PATH_INFO", "").startswith("//") or "%2f" in sent.lower():
        raise NotFound
    headers = [each for each in environ.items() if each[0].startswith("HTTP_")]
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADERS:
        raise RequestHeaderFieldsTooLarge
    if len(environ.get("PATH_INFO", "")) + len(environ.get("QUERY_STRING", "")) > MAX_URL:
        raise RequestURITooLarge


class _Answer(NamedTuple):
    """An answered request, as its log line says: the route, never the URL, may hold no token."""

    request_id: str
    method: str
    route: str
    problem: str | None
    address: str
    key_id: str | None


def _answer() -> _Answer:
    caller = g.get("caller")
    return _Answer(
        request_id=request_id(),
        method=request.method if request.method in _METHODS else "other",
        route=request.url_rule.rule if request.url_rule else "(none)",
        problem=g.get("problem"),
        address=client_address(),
        key_id=ids.of_caller(caller.key_id) if caller else None,
    )


def _record(here: Services, began: float, answer: _Answer, status: int) -> None:
    """Count a request that was read at `began` (`time.perf_counter`), and log one line."""
    seconds = time.perf_counter() - began
    here.tally.add(metrics.HTTP_REQUESTS, answer.method, answer.route, str(status))
    here.tally.observe(metrics.HTTP_SECONDS, seconds, answer.route)
    here.counters.begin()
    here.key_heartbeat.begin()
    here.process_report.begin()
    _access.info("request", **answer._asdict(), status=status, duration_ms=round(seconds * 1000, 2))


class SegmentConverter(UnicodeConverter):
    """A path segment that is none of `_WORDS`.

    So an unsupported method on such a route is 405 with that route's own `Allow`, and not the
    lookup of an id.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.regex = rf"(?!(?:{'|'.join(_WORDS)})$){self.regex}"


class RestConverter(BaseConverter):
    """The rest of a path, slashes and line breaks included: an id of its owner's."""

    regex = "(?s:.+)"
    part_isolating = False
