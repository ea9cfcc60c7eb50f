"""A service whose `/metrics` tests read: a web process, a worker's runtime and a scheduler.

All are in this process, on stores of their own; each does something when a test says so.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, create_engine

from app.api.http.services import EXTENSION, Services
from app.core import tenants
from app.core.health.readiness import LAST_SECONDS
from app.database import Database
from app.lib.metric_registry import Tally
from app.lib.repeater import Repeater
from app.settings import Settings
from app.web import create_app
from jobs.actors import sweep
from jobs.process import runtime
from jobs.process.runtime import Runtime
from scheduler.clock import Clock
from tests.support.callers.api import Api, FreshTenant
from tests.support.database.databases import empty, execute, scalar
from tests.support.faults import OwnValkey, until
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.worlds import World

TOKEN = "t0ken"
# What is in every scrape that is whole: a query that takes too long leaves its gauges out, and a
# Redis that does not answer within half a second is called away.
_WHOLE = (
    "record_service_sweeps_total",
    "record_service_lanes_due",
    "record_service_lanes",
    "record_service_webhook_consecutive_failures",
    "record_service_log_size",
    "record_service_digests_refused",
    "record_service_master_keys_missing",
    "record_service_audit_unverified_seconds",
)
# A series: its name and its labels.
Series = tuple[str, tuple[tuple[str, str], ...]]
Scrape = dict[Series, float]


class Monitored:
    """A service, what happens to it, and what its `/metrics` says."""

    def __init__(self, settings: Settings, owner: Engine, valkey: OwnValkey, head: Path) -> None:
        self.settings = settings
        self.owner = owner
        self.valkey = valkey
        self.head = head
        self._app = create_app(settings)
        runtime.start(settings, 4, Tally())
        # A report lasts fifteen seconds, and a slow machine may stand still for longer.
        for report in (self.services.process_report, self.runtime.process_report):
            report.close(LAST_SECONDS)
        # What Prometheus sends.
        self.token = TOKEN

    @property
    def services(self) -> Services:
        """What the web process holds."""
        found = self._app.extensions[EXTENSION]
        assert isinstance(found, Services)
        return found

    @property
    def runtime(self) -> Runtime:
        """What the worker holds."""
        return runtime.runtime()

    @property
    def database(self) -> Database:
        return self.runtime.database

    def reset(self) -> None:
        """Have everything new and in order, with every part up."""
        self.token = TOKEN
        self.run("DROP TRIGGER IF EXISTS disk_full ON master_keys")
        empty(self.owner)
        self.head.unlink(missing_ok=True)
        self.valkey.client.flushall()
        Clock(self.valkey.client, {}).poll()
        self.report()

    def report(self) -> None:
        """Have the web process and the worker report, once Redis has taken it."""
        client = self.valkey.client
        for role, report in (
            ("web", self.services.process_report),
            ("worker", self.runtime.process_report),
        ):
            name = f"process:{role}:{socket.gethostname()}:{os.getpid()}"
            client.delete(name)

            def is_told(report: Repeater = report, name: str = name) -> bool:
                report.work()
                return bool(client.exists(name))

            until(is_told)
        self.keep_reports()

    def keep_reports(self) -> None:
        """Let what was reported not be forgotten by itself."""
        client = self.valkey.client
        for name in client.smembers("processes"):
            client.persist(name)

    def scrape(self) -> Scrape:
        """Return what Prometheus gets once that is whole; nothing if it is refused."""
        for counters in (self.services.counters, self.runtime.counters):
            until(counters.work)
        # What is kept of the parts may be fifteen seconds old.
        self.services.readiness.compute()
        seen: list[Scrape] = []

        def is_whole() -> bool:
            answer = self.api(self.token).get("/metrics")
            seen.append(_read(answer.text) if answer.status_code == 200 else {})
            redis = seen[-1].get(("record_service_up", (("part", "redis"),)))
            described = all(f"# TYPE {name} " in answer.text for name in _WHOLE)
            return answer.status_code == 401 or (described and redis == 1)

        until(is_whole)
        return seen[-1]

    def sweep(self) -> None:
        """Look for what is due, as the worker does each second."""
        sweep.run(self.runtime)

    def api(self, key: str | None = None) -> Api:
        return Api(self._app.test_client(), key)

    def tenant(self) -> FreshTenant:
        return FreshTenant(*tenants.create(self.database, MASTER_KEYS, "watched"))

    def world(self) -> World:
        """Return a new tenant whose deliveries the worker sends."""
        return World(self.runtime, self.tenant().id)

    def run(self, sql: str, **values: Any) -> None:
        """Do something to the database as its owner."""
        execute(self.owner, sql, **values)

    def value(self, sql: str) -> Any:
        """Look something up in the database."""
        return scalar(self.owner, sql)

    def close(self) -> None:
        """End every part."""
        runtime.stop()
        self.services.close()


def _read(written: str) -> Scrape:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(written)
        for sample in family.samples
    }


@contextmanager
def monitored(settings: Settings, valkey: OwnValkey, folder: Path) -> Iterator[Monitored]:
    """Run a service on this database for the length of a `with`, its log's head in this folder.

    It has four connections a process, and room for one large request and none that waits.
    """
    head = folder / "head"
    mine = replace(
        settings,
        metrics_token=TOKEN,
        redis_url=valkey.url,
        log_head_url=head.as_uri(),
        retry_schedule=(0.0,) * 20,
        database_connections=16,
        web=replace(settings.web, large_at_once=1, large_waiting=0),
    )
    owner = create_engine(settings.database_admin_url)
    service = Monitored(mine, owner, valkey, head)
    try:
        yield service
    finally:
        service.close()
        owner.dispose()
