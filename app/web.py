"""The web application: behind the gateway's event loop (`app.asgi`), or as plain WSGI.

`gunicorn 'app.web:create_app()'` serves the plain application; the tests call it.
"""

from collections.abc import Callable
from functools import partial
from uuid import UUID

import structlog
from flask import Flask

from app import logs, metrics
from app.api.http import auth, documentation, problems, promises, rate_limit, request_hooks
from app.api.http.request_hooks import RestConverter, SegmentConverter
from app.api.http.services import EXTENSION, Services, address_of
from app.api.pages import private_pages, site
from app.api.resources import (
    agents,
    audit,
    events,
    findings,
    health,
    jobs,
    keys,
    log,
    search,
    sessions,
    tenant,
    traces,
    verification,
    webhooks,
)
from app.api.resources.deliveries import deliveries, replays
from app.api.resources.records import (
    bundles,
    evidence_packs,
    exports,
    holds,
    records,
    rules,
    share_links,
)
from app.console import site as console
from app.console.pages import sign_in
from app.lib import forwarded
from app.lib.fair_shares import Shares
from app.lib.gateway.answers import Answer
from app.lib.gateway.connections import Connections
from app.lib.gateway.gateway import Environ, Gateway, Limits
from app.lib.gateway.requests import Pace
from app.settings import Settings, load

_log = structlog.get_logger(__name__)

# Of one client, and in all, that wait for their client in a process; the server lets 8,192 in.
_IDLE_OF_ONE, _IDLE = 256, 4096

BLUEPRINTS = (
    keys.blp,
    tenant.blp,
    agents.blp,
    sessions.blp,
    sessions.evidence,
    records.blp,
    bundles.blp,
    evidence_packs.blp,
    share_links.blp,
    holds.blp,
    private_pages.shared,
    traces.blp,
    log.blp,
    findings.blp,
    rules.blp,
    webhooks.blp,
    webhooks.signatures,
    deliveries.blp,
    replays.blp,
    deliveries.stats,
    events.blp,
    tenant.digests,
    private_pages.unsubscribe,
    jobs.blp,
    exports.blp,
    search.blp,
    audit.blp,
    verification.anchors_blp,
    health.blp,
)


def create_gateway() -> Gateway:
    """Put the application behind an event loop, with settings from the environment.

    Raises `SettingError`.
    """
    settings = load()
    application = create_app(settings)
    here: Services = application.extensions[EXTENSION]

    def note_slow_reader(answer: Answer) -> None:
        here.tally.add(metrics.WEB_REFUSED, "slow_reader")
        _log.warning("reader_too_slow", request_id=answer.header(b"x-request-id"))

    web = settings.web
    limits = Limits(
        body=Pace(web.body_seconds, web.body_rate),
        answer=Pace(web.answer_seconds, web.answer_rate),
        long_bodies=Shares(web.body_memory, web.body_memory // 2),
    )
    connections = Connections(_IDLE_OF_ONE, _IDLE, partial(_whose_connection, settings))
    connections.watch()
    return Gateway(
        application,
        web.threads,
        limits,
        caller=partial(caller, settings, here.keyring.tenant_of),
        address=partial(address, settings),
        most=partial(auth.body_limit, application),
        urgent=dict.fromkeys(("/healthz", "/readyz"), health.not_in_time),
        promising=promises.paths(application),
        connections=connections,
        on_slow_reader=note_slow_reader,
    )


def _whose_connection(settings: Settings, peer: str) -> str | None:
    """Return whom a peer's connections count for; None for a proxy, which has those of many."""
    if forwarded.is_trusted(peer, settings.trusted_proxies):
        return None
    return forwarded.network(peer)


def caller(
    settings: Settings, tenant_of: Callable[[str], UUID | None], environ: Environ
) -> UUID | str:
    """Return whose turn a request takes: its key's tenant, or else its client's address.

    `tenant_of` knows the keys that were valid when they were last looked up. All others count for
    the address, as does a request with two credentials, which is refused.
    """
    key_text = "" if auth.has_two_credentials(environ) else auth.key_text(environ)
    return tenant_of(key_text) or address(settings, environ)


def address(settings: Settings, environ: Environ) -> str:
    """Return the address of a request's client, as trusted proxies forward it; IPv6 by /64."""
    return forwarded.network(address_of(settings, environ))


def create_app(settings: Settings | None = None) -> Flask:
    """Create the application, with settings from the environment unless given.

    Only one thread connects before the first request: the heartbeat that records this process's
    active master key. Raises `SettingError`.
    """
    settings = settings or load()
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    app.url_map.converters |= {"default": SegmentConverter, "rest": RestConverter}
    # No view is a coroutine, which Flask would look for seven times a request.
    app.ensure_sync = lambda func: func  # type: ignore[method-assign]  # as Flask says
    open_services(app, settings)
    request_hooks.register(app, settings)
    problems.register(app)
    documented = documentation.DocumentedApi(app, spec_kwargs=documentation.open_spec(settings))
    documentation.complete(documented)
    for blueprint in BLUEPRINTS:
        documented.register_blueprint(blueprint)
    app.register_blueprint(site.blp)
    app.register_blueprint(console.blp)
    app.register_blueprint(site.client)
    site.describe(app, documented.spec)
    app.extensions[site.DOCUMENT] = documentation.write(documented)
    return app


def open_services(app: Flask, settings: Settings) -> None:
    """Give an application its services, or new ones once those before are closed."""
    logs.configure(settings)
    app.extensions[EXTENSION] = opened = Services(settings, sign_in.CALLBACK)
    app.extensions[rate_limit.EXTENSION] = rate_limit.Limits.of(settings)
    opened.key_heartbeat.begin()
