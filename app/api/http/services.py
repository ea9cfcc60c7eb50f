"""What every view stands on: the application's services, the client and caller, transactions."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from flask import current_app, g, request
from sqlalchemy.orm import Session

from app import counters
from app.api.http.answers import Renderings
from app.core import findings
from app.core.audit.refusals import Refusals
from app.core.blobs import reading, store
from app.core.callers import Caller
from app.core.health import readiness
from app.core.health.readiness import Readiness
from app.core.keys.keyring import Keyring
from app.core.log import head_store
from app.core.master_keys import key_registry
from app.core.records import intake as records_intake
from app.core.rules.evaluators import Evaluators
from app.core.traces.staging import Staging
from app.core.verification.published_log import Trust
from app.core.verification.verifier import Verifier
from app.database import Database, RawTransaction
from app.errors import Unavailable
from app.lib import forwarded
from app.lib.breaker import Breaker
from app.lib.crypto.randomness import random_bytes
from app.lib.database import replica
from app.lib.fair_shares import Places, Shares
from app.lib.metric_registry import Tally
from app.lib.openid_connect import Client, Provider
from app.queue import Bell
from app.setting_values import MIB
from app.settings import Settings

EXTENSION = "record-service"
REQUEST_ID = "X-Request-ID"

_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
# Each process records log damage that requests meet at most once in so many seconds.
_DAMAGE_SECONDS = 10.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Services:
    """The connections and caches of one application, shared by all requests of the process."""

    def __init__(self, settings: Settings, sign_in_path: str) -> None:
        """Prepare all; nothing connects before the first request.

        An OpenID provider, if one is set, sends people back to `sign_in_path`.
        """
        self.settings = settings
        self.tally = Tally()
        self.bell = Bell(settings.redis_url, self.tally)
        self.database = Database.of(settings, "web", self.bell, self.tally)
        self.counters = counters.writer(self.database, self.tally)
        self.key_heartbeat = key_registry.heartbeat(self.database, settings.master_keys)
        self.process_report = readiness.process_report(self.database, self.bell, "web")
        self.readiness = Readiness(self.database, settings)
        self.keyring = Keyring(self.database)
        self.refusals = Refusals(self.database)
        self.findings = findings.Intake(self.database, settings.master_keys)
        self.records = records_intake.Intake(self.database, settings)
        trust = Trust(settings.tsa_ca_file, settings.witness_policy)
        head = head_store.opened(settings.log_head_url)
        self.verifier = Verifier(self.database, settings.master_keys, head, trust)
        # Bounds how often requests record damage of the log.
        self.damage = Breaker(_DAMAGE_SECONDS)
        self.staging = Staging(self.database, self.tally, settings.tenant_staged_mib * MIB)
        self.evaluators = Evaluators()
        web = settings.web
        self.renderings = Renderings(web.rendering_memory)
        self.large = Places(web.large_at_once, web.large_waiting)
        self.answers = Shares(web.answer_memory, web.answer_memory // 4)
        self.provider = _provider(settings, sign_in_path)

    def fetching(self, work: Callable[[], _R]) -> _R:
        """Do some work with transactions of its own, once what it reads in them is fetched."""
        return reading.fetching(store.of(self.settings.blob_url), work)

    def close(self) -> None:
        """Write the last counters and key uses, and close every connection."""
        if self.provider is not None:
            self.provider.close()
        self.evaluators.close()
        self.keyring.close()
        self.refusals.close()
        self.counters.close(counters.LAST_SECONDS)
        self.key_heartbeat.close(key_registry.LAST_SECONDS)
        self.process_report.close(readiness.LAST_SECONDS)
        self.readiness.close()
        self.database.close()
        self.bell.close()


def _provider(settings: Settings, sign_in_path: str) -> Provider | None:
    told = settings.openid
    if told.issuer is None:
        return None
    back = f"{settings.base_url}{sign_in_path}"
    client = Client(
        told.issuer, told.client_id, told.client_secret, back, told.scopes, told.groups_claim
    )
    return Provider(client, told.ca_file)


def services() -> Services:
    """Return the services of the application that serves this request."""
    return cast(Services, current_app.extensions[EXTENSION])


def request_id() -> str:
    """Return this request's id: the caller's `X-Request-ID` if it is well-formed, else a new id."""
    found: str | None = g.get("request_id")
    if found is None:
        sent = request.environ.get("HTTP_X_REQUEST_ID", "")
        g.request_id = found = sent if _REQUEST_ID_FORM.fullmatch(sent) else random_bytes(16).hex()
    return found


def client_address() -> str:
    """Return the client's address, as trusted proxies forward it."""
    found: str | None = g.get("address")
    if found is None:
        g.address = found = address_of(services().settings, request.environ)
    return found


def address_of(settings: Settings, environ: Mapping[str, Any]) -> str:
    """Return the address of a request's client, as trusted proxies forward it."""
    name = settings.proxy_header
    sent = environ.get(f"HTTP_{name.upper().replace('-', '_')}", "")
    peer = environ.get("REMOTE_ADDR") or ""
    return forwarded.client_address(peer, name, sent, settings.trusted_proxies)


def client_network() -> str:
    """Return what a request without a key is rate limited by: an IPv4 address, or an IPv6 /64."""
    return forwarded.network(client_address())


def caller() -> Caller:
    """Return the caller of this request; only views behind `auth.requires` have one."""
    return cast(Caller, g.caller)


def transaction(*, snapshot: bool = False) -> AbstractContextManager[Session]:
    """Open a transaction that sees the caller's tenant and commits when the block returns.

    With `snapshot` every statement sees the same moment.
    """
    return services().database.transaction(caller().tenant_id, snapshot=snapshot)


def raw_transaction() -> AbstractContextManager[RawTransaction]:
    """Open the same without the ORM's session, which costs more than a few statements."""
    return services().database.raw_transaction(caller().tenant_id)


def reads_objects(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Fetch what a function reads that lies in the object store, with no transaction open.

    Its transactions that lack an object are undone, and it runs again: until then it must do
    nothing that lasts.
    """

    @wraps(read)
    def fetching(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return services().fetching(lambda: read(*args, **kwargs))

    return fetching


def prefers_replica(view: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have the GETs of a view read from the replica, where one is set, fit and not behind.

    One that writes all the same, or that the replica fails, runs again on the primary.
    """

    @wraps(view)
    def read(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if request.method not in ("GET", "HEAD") or services().database.replica is None:
            return view(*args, **kwargs)
        with replica.preferred() as tried:
            try:
                return view(*args, **kwargs)
            except Unavailable:
                if not tried.from_replica:
                    raise
        return view(*args, **kwargs)

    return read
