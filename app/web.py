"""The web application: what a WSGI server starts, and what the tests call.

Either `granian --interface wsgi --factory app.web:create_app` or `gunicorn 'app.web:create_app()'`.
"""

from flask import Flask

from app import logs
from app.api import (
    agents,
    anchors,
    audit,
    bundles,
    deliveries,
    digests,
    documentation,
    edge,
    events,
    evidence_packs,
    exports,
    findings,
    jobs,
    keys,
    limits,
    log,
    log_proofs,
    problems,
    records,
    sessions,
    share_links,
    shared_page,
    site,
    system,
    tenant,
    unsubscribe,
    webhooks,
)
from app.api.services import EXTENSION, Services
from app.core.audit.verification.stamps import Trust
from app.core.audit.verification.verifier import Verifier
from app.core.keys import Keyring
from app.core.log import heads
from app.core.sealed.announcing import Announcer
from app.counters import CounterWriter
from app.database import Database
from app.lib.tally import Tally
from app.queue import Bell
from app.settings import Settings, load

RESOURCES = (
    keys,
    tenant,
    agents,
    sessions,
    records,
    bundles,
    exports,
    evidence_packs,
    share_links,
    shared_page,
    log_proofs,
    log,
    findings,
    webhooks,
    deliveries,
    events,
    digests,
    unsubscribe,
    jobs,
    audit,
    anchors,
    system,
)


def create_app(settings: Settings | None = None) -> Flask:
    """Put the application together.

    Nothing is connected before the first request, but by a thread that says from now on which
    master key this process has in front. Without `settings` they are read from the environment.
    Raises `SettingError`.
    """
    settings = settings or load()
    logs.configure(settings)
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    app.extensions[EXTENSION] = services = _services(settings)
    app.extensions[limits.EXTENSION] = limits.Limits(
        limits.Counter(limits.Rate.parse(settings.rate_limit))
    )
    edge.register(app, settings)
    problems.register(app)
    documented = documentation.DocumentedApi(app, spec_kwargs=documentation.open_spec(settings))
    documentation.complete(documented)
    for resource in RESOURCES:
        documented.register_blueprint(resource.blp)
    app.register_blueprint(site.blp)
    site.describe(app, documented.spec)
    app.extensions[site.DOCUMENT] = documentation.write(documented)
    services.announcer.begin()
    return app


def _services(settings: Settings) -> Services:
    tally = Tally()
    bell = Bell(settings.redis_url, tally)
    database = Database(
        settings.database_url,
        pool_size=settings.database_pool_size,
        application="record-service web",
        bell=bell,
        first_wait=settings.first_wait,
        prepare_threshold=settings.database_prepare_threshold,
    )
    counters = CounterWriter(database, tally)
    announcer = Announcer(database, settings.master_keys)
    trust = Trust(settings.tsa_ca_file, settings.witness_policy)
    head = heads.opened(settings.log_head_url)
    verifier = Verifier(database, settings.master_keys, head, trust)
    keyring = Keyring(database)
    return Services(settings, database, bell, tally, counters, announcer, keyring, verifier)
