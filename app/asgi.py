"""The web application behind an event loop, as the Procfile serves it.

`granian --interface asginl --factory app.asgi:create_app`.
"""

import gc
from functools import partial

import structlog

from app import metrics
from app.api.http.services import EXTENSION, Services
from app.lib import forwarded
from app.lib.fair_shares import Shares
from app.lib.gateway.answers import Answer
from app.lib.gateway.bodies import Pace
from app.lib.gateway.gateway import Gateway, Limits, Scope
from app.settings import Settings, load
from app.web import create_app as create_wsgi_app

_URGENT = frozenset(("/healthz", "/readyz"))

_log = structlog.get_logger(__name__)


def create_app() -> Gateway:
    """Put the application together, with settings from the environment; raises `SettingError`."""
    settings = load()
    application = create_wsgi_app(settings)
    here: Services = application.extensions[EXTENSION]

    def told(answer: Answer) -> None:
        here.tally.add(metrics.WEB_REFUSED, "slow_reader")
        _log.warning("reader_too_slow", request_id=answer.header(b"x-request-id"))

    # What stands until the process ends: a full collection among large bodies stops all threads,
    # and took 350 ms with it and 40 ms without.
    gc.collect()
    gc.freeze()
    web = settings.web
    limits = Limits(
        body=Pace(web.body_seconds, web.body_rate),
        answer=Pace(web.answer_seconds, web.answer_rate),
        late_bodies=Shares(web.body_memory, web.body_memory // 2),
    )
    return Gateway(
        application,
        web.threads,
        limits,
        caller=partial(caller, settings),
        urgent=_URGENT,
        on_slow_reader=told,
    )


def caller(settings: Settings, scope: Scope) -> object:
    """Return the key that a request carries, good or not, or the address that it comes from."""
    sent = dict(scope["headers"])
    key = sent.get(b"authorization") or sent.get(b"x-api-key")
    if key:
        return key
    peer = (scope.get("client") or ("",))[0]
    name = settings.proxy_header.lower().encode()
    # A proxy may add a line of its own: several are one list (RFC 9110 section 5.3).
    lines = [value for field, value in scope["headers"] if field == name]
    hops = b",".join(lines).decode("latin-1")
    return forwarded.client_address(peer, settings.proxy_header, hops, settings.trusted_proxies)
