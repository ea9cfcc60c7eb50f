"""A database that lost what it had accepted says so, and one that lost nothing says nothing.

Twenty findings are accepted and delivered, the primary is killed, its standby is promoted, and
twenty more come. What the standby has of the first twenty is the question.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from record_service import webhooks
from record_service.errors import HistoryRolledBack
from record_service.errors import problem as records_problem

from app.core import tenants
from app.core.log import history
from app.manage import commands
from app.models import NO_TENANT
from app.settings import Settings
from dev import processes
from dev.stores.postgres import EmbeddedPostgres
from jobs.actors import sweep, ticks
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, FreshTenant, serving
from tests.support.callers.making import refused, uuid_of
from tests.support.callers.sending import deliveries, make_findings, make_webhook
from tests.support.database.copies import NAME, Copy, Standby, follows
from tests.support.database.databases import allow_connections
from tests.support.secrets import MASTER_KEYS, MASTER_KEYS_SETTING
from tests.support.servers.receivers import Receiver
from tests.support.workers.worlds import World

pytestmark = pytest.mark.toolbox


class Service:
    """Web and worker on one database, whose log has a head outside."""

    def __init__(self, server: EmbeddedPostgres, head: Path, stack: ExitStack) -> None:
        self.environ = {
            "DATABASE_URL": server.url,
            "DATABASE_ADMIN_URL": server.admin_url,
            "MASTER_KEYS": MASTER_KEYS_SETTING,
            "BASE_URL": "https://records.test",
            "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
            "LOG_HEAD_URL": head.as_uri(),
            "METRICS_TOKEN": "scraped",
        }
        settings = Settings.from_environ(self.environ)
        self.runtime = Runtime.open(settings, threads=4)
        stack.callback(self.runtime.close)
        self.of = stack.enter_context(serving(settings))

    def tick(self) -> None:
        """Do what the clock asks for, and the jobs that come of it."""
        sweep.run(self.runtime)
        ticks.integrate(self.runtime)
        with self.runtime.database.across_tenants() as session:
            query = "SELECT id FROM jobs WHERE tenant_id = %s AND finished_at IS NULL"
            due = session.connection().exec_driver_sql(query, (NO_TENANT,)).scalars().all()
        for job in due:
            work_on(self.runtime, NO_TENANT, job)

    def deliver(self, tenant: FreshTenant, webhook: dict[str, Any]) -> None:
        """Send what is due."""
        World(self.runtime, tenant.id).turn(uuid_of(webhook["id"]))

    def scrape(self) -> str:
        """Return the metrics."""
        api = self.of("scraped")
        api.readyz()
        return api.get("/metrics").text


class Failover:
    """A primary with a standby that has four findings, and what a receiver saw of all."""

    def __init__(self, folder: Path, migrated: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.primary = stack.enter_context(Copy(folder / "primary", migrated, durable=True))
        allow_connections(self.primary, allowed=True)
        self.receiver = stack.enter_context(Receiver())
        self.service = self.serve(self.primary)
        made = tenants.create(self.service.runtime.database, MASTER_KEYS, "the test's tenant")
        self.tenant = FreshTenant(*made)
        self.webhook = make_webhook(self.api, url=self.receiver.url())
        self.accept(4)
        self.service.tick()
        self.standby = stack.enter_context(Standby(folder / "standby", self.primary))
        follows(self.primary)

    def serve(self, server: EmbeddedPostgres) -> Service:
        """Start a service on a server, with the same head outside."""
        return Service(server, self._folder / "head", self._stack)

    @property
    def api(self) -> Api:
        """The tenant's root key, at the service of now."""
        return self.service.of(self.tenant.root_key)

    def accept(self, count: int) -> list[str]:
        """Accept findings and deliver them; return the ids of their events."""
        before = len(self.receiver.requests)
        make_findings(self.api, count)
        self.service.deliver(self.tenant, self.webhook)
        sent = self.receiver.requests[before:]
        assert len(sent) == count
        return [each.headers["webhook-id"] for each in sent]

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        assert self.primary.process is not None
        processes.stop(self.primary.process, signal.SIGQUIT)
        if self.standby.process is None:
            self.standby.start()
        self.standby.promote()
        self.service = self.serve(self.standby)

    def feed(self, after: int, epoch: str) -> Any:
        """Ask the catch-up feed."""
        return self.api.get(deliveries(self.webhook, f"?after={after}&epoch={epoch}&limit=200"))


@pytest.fixture
def failover(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failover]:
    monkeypatch.setattr(history, "EVERY", timedelta(0))
    with ExitStack() as stack:
        yield Failover(tmp_path, migrated, stack)


@pytest.fixture
def manage(failover: Failover, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run an operator's command on the service of now."""

    def run(*arguments: str) -> int:
        for name, value in failover.service.environ.items():
            monkeypatch.setenv(name, value)
        return commands.main([*arguments])

    return run


def test_a_lost_tail_is_told(
    failover: Failover, manage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    failover.standby.stop()
    position = failover.api.get("/v1/events?after=now").json["next_after"]
    lost = failover.accept(20)
    failover.service.tick()
    last = failover.receiver.requests[-1].headers
    assert (last["x-service-sequence"], last["x-service-epoch"][:4]) == ("24", "epo_")
    known = last["x-service-epoch"]
    assert webhooks.place(last) == (24, known)
    failover.fail_over()
    fresh = failover.accept(20)
    assert not {*fresh} & {*lost}
    # Until the next tick the numbers look as if nothing had happened.
    assert failover.receiver.requests[-1].headers["x-service-sequence"] == "24"
    assert failover.feed(24, known).json["data"] == []

    failover.service.tick()
    problem = refused(failover.feed(24, known), 410, "history-rolled-back")
    assert problem["epoch"] != known
    client = records_problem(410, problem)
    assert isinstance(client, HistoryRolledBack)
    assert (client.epoch, client.next_after) == (problem["epoch"], problem["next_after"])
    assert problem["next_after"] <= 4
    page = failover.feed(problem["next_after"], problem["epoch"]).json
    assert {*fresh} < {row["event_id"] for row in page["data"]}
    assert page["epoch"] == problem["epoch"]
    refused(failover.feed(1000, problem["epoch"]), 410, "history-rolled-back")
    # The feed of all events too.
    moved = refused(failover.api.get(f"/v1/events?after={position}"), 410, "history-rolled-back")
    found = failover.api.get(f"/v1/events?after={moved['next_after']}&limit=200").json["data"]
    assert {*fresh} < {event["id"] for event in found}
    # Everybody is told.
    failover.service.deliver(failover.tenant, failover.webhook)
    told = json.loads(failover.receiver.requests[-1].body)
    assert (told["type"], told["data"]["epoch"]) == ("history.rolled_back", problem["epoch"])
    assert failover.receiver.requests[-1].headers["x-service-epoch"] == problem["epoch"]
    (entry,) = failover.api.get("/v1/audit?action=history.roll_back").json["data"]
    assert entry["details"]["lost_until"] == told["data"]["lost_until"]
    ready = failover.service.of().readyz().json
    assert "history" in ready["degraded"]
    assert problem["epoch"] in ready["parts"]["history"]
    assert "record_service_history_rolled_back 1" in failover.service.scrape()
    assert manage("doctor") == 1
    assert problem["epoch"] in capsys.readouterr().out
    # It is told once, and ends with the command that the operator is given.
    failover.service.tick()
    assert failover.feed(24, problem["epoch"]).status_code == 200
    assert manage("log", "succeed", "--yes") == 0
    assert "is lost in part or whole" in capsys.readouterr().out
    failover.service.tick()
    assert "history" not in failover.service.of().readyz().json["degraded"]
    assert "record_service_history_rolled_back 0" in failover.service.scrape()
    assert failover.feed(25, problem["epoch"]).status_code == 200


def test_what_a_synchronous_standby_has_is_not_lost(failover: Failover) -> None:
    with psycopg.connect(failover.primary.admin_url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'".encode())
        connection.execute("SELECT pg_reload_conf()")
    failover.accept(20)
    failover.service.tick()
    known = failover.receiver.requests[-1].headers["x-service-epoch"]
    failover.fail_over()
    with psycopg.connect(failover.standby.admin_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")
    for _ in range(2):
        failover.service.tick()
    fresh = failover.accept(20)
    failover.service.tick()
    page = failover.feed(24, known).json
    assert ([row["event_id"] for row in page["data"]], page["epoch"]) == (fresh, known)
    assert "history" not in failover.service.of().readyz().json["degraded"]
    assert "record_service_history_rolled_back 0" in failover.service.scrape()
    assert failover.api.get("/v1/audit?action=history.roll_back").json["data"] == []
