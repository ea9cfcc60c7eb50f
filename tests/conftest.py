"""A real PostgreSQL for each test process, a database that each module of tests finds empty, and a
tenant of its own for each test.

Tests of a module are apart by tenant, as customers are; those that need an empty database ask for
`fresh_database`.
"""

import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from sqlalchemy import Engine, create_engine

from app.core import tenants
from app.core.log.sequencer import Sequencer
from app.database import Database
from app.settings import Settings
from jobs.actors import ticks
from jobs.durable import run_job
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint, application
from tests.support.callers.sending import Worker, make_webhook
from tests.support.database import copies, leftovers
from tests.support.database.copies import Copy
from tests.support.database.databases import (
    SpareDatabase,
    copy_template,
    empty,
    made_database,
    of_database,
)
from tests.support.faults import OwnValkey
from tests.support.secrets import MASTER_KEYS, MASTER_KEYS_SETTING
from tests.support.servers import shared
from tests.support.servers.shared import Shared
from tests.support.workers.worlds import opened_runtime

# What imports and collection make stays: the collector went through all of it 30 times.
gc.disable()

# What a shell starts in the background ignores Ctrl-C, and so would every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long examples take says more of what else the machine does than of the code.
hypothesis_settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
hypothesis_settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Look for garbage from now on, among what the tests make, a tenth as often as usual."""
    gc.freeze()
    gc.set_threshold(7_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have every server that tests share, also where the last test saw one die."""
    shared.start_anew()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the failure of a test which shared server has died, and how."""
    report = yield
    if report.failed:
        for why in shared.deaths(closely=True):
            report.sections.append(("a shared server is gone", why))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail the test in which a shared server died, though it noticed nothing."""
    gone = shared.deaths()
    yield
    assert gone == [], "\n".join(gone)


@pytest.fixture(scope="session", autouse=True)
def machine_that_stands_still() -> Iterator[None]:
    """Let neither a transaction nor a turn at jobs end because this process got no processor."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Database, "idle_seconds", 60.0)
        monkeypatch.setattr(run_job, "TURN_SECONDS", 60.0)
        monkeypatch.setattr(ticks, "DIGEST_SECONDS", 60.0)
        yield


@pytest.fixture(autouse=True)
def no_rows_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves rows by which later ones would judge the service."""
    yield
    if "settings" in request.fixturenames:
        assert leftovers.take_rows(request.getfixturevalue("admin_engine")) == []


@pytest.fixture(scope="module", autouse=True)
def no_threads_left() -> Iterator[None]:
    """Fail a module of tests that leaves a thread that goes on writing."""
    before = set(threading.enumerate())
    yield
    leftovers.end_of_threads(before)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a migrated PostgreSQL: each process of this run copies it."""
    folder = tmp_path_factory.getbasetemp()
    return copies.migrated(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(scope="session")
def postgres(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """Run a PostgreSQL for this test process, migrated to this release."""
    server = Copy(tmp_path_factory.mktemp("postgres"), migrated)
    watched = Shared("PostgreSQL", lambda: server.process, server.log, server.start)
    with server, shared.shared(watched):
        yield server


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    """Run a Valkey for this test process."""
    server = OwnValkey(tmp_path_factory.mktemp("valkey"))
    with shared.shared(server.watched):
        yield server
    server.close()


@pytest.fixture
def own_valkey(shared_valkey: OwnValkey) -> OwnValkey:
    """Return a Valkey that is empty, and that this test may freeze, stop and empty."""
    shared_valkey.forget()
    return shared_valkey


@pytest.fixture(scope="session")
def environ(postgres: Copy) -> dict[str, str]:
    """Return the environment of a service on the test's servers, without Redis."""
    copy_template(postgres, "tests")
    return {
        "DATABASE_URL": of_database(postgres.url, "tests"),
        "DATABASE_ADMIN_URL": of_database(postgres.admin_url, "tests"),
        "MASTER_KEYS": MASTER_KEYS_SETTING,
        "BASE_URL": "https://records.test",
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
    }


@pytest.fixture(scope="session")
def base_settings(environ: dict[str, str]) -> Settings:
    """Return the settings of that service, for what outlives a module of tests."""
    return Settings.from_environ(environ)


@pytest.fixture(scope="module")
def settings(base_settings: Settings, admin_engine: Engine) -> Settings:
    """Return the settings of that service, whose database each module of tests finds empty."""
    empty(admin_engine)
    return base_settings


@pytest.fixture(scope="module")
def database(settings: Settings) -> Iterator[Database]:
    """Return the database as the service's own role sees it."""
    opened = Database(settings.database_url, pool_size=20, application="tests")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def admin_engine(base_settings: Settings) -> Iterator[Engine]:
    """Return an engine of the database's owner, whom no wall binds: for attacks and for looking."""
    engine = create_engine(base_settings.database_admin_url, pool_pre_ping=True)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def spare_database(base_settings: Settings, admin_engine: Engine) -> Iterator[SpareDatabase]:
    """Return the database that `fresh_settings` hands from test to test."""
    spare = SpareDatabase(base_settings, admin_engine)
    yield spare
    spare.close()


@pytest.fixture
def fresh_settings(spare_database: SpareDatabase) -> Settings:
    """Return settings that name an empty, migrated database of this test's own."""
    return spare_database.fresh()


@pytest.fixture
def fresh_database(fresh_settings: Settings) -> Iterator[Database]:
    """Return that database."""
    opened = Database(fresh_settings.database_url, application="tests")
    yield opened
    opened.close()


@pytest.fixture
def forgotten(admin_engine: Engine) -> Iterator[None]:
    """Forget, after a test that breaks chains or seals under other keys, what others would meet."""
    yield
    leftovers.take_rows(admin_engine)


@pytest.fixture(scope="session")
def log_settings(base_settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    """Return settings that name a database for tests that need a log to themselves."""
    with made_database(base_settings, admin_engine) as own:
        yield own


@pytest.fixture(scope="session")
def log_owner(log_settings: Settings) -> Iterator[Engine]:
    """Return an engine of that database's owner."""
    engine = create_engine(log_settings.database_admin_url, pool_pre_ping=True)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def log_runtime(log_settings: Settings) -> Iterator[Runtime]:
    """Return what a worker on that database holds, without Redis."""
    with opened_runtime(log_settings) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> FreshTenant:
    """Return a tenant of this test's own."""
    return FreshTenant(*tenants.create(database, MASTER_KEYS, "the test's tenant"))


@pytest.fixture
def other_tenant(database: Database) -> FreshTenant:
    """Return a stranger."""
    return FreshTenant(*tenants.create(database, MASTER_KEYS, "a stranger"))


@pytest.fixture(scope="module")
def app(settings: Settings, database: Database) -> Iterator[Flask]:
    """Return the web application on the test's servers."""
    with application(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def runtime(settings: Settings) -> Iterator[Runtime]:
    """Return what a worker on the test's servers holds, without Redis."""
    with opened_runtime(settings) as opened:
        yield opened


@pytest.fixture
def log(database: Database, settings: Settings) -> Sequencer:
    """Return the sequencer of the log that all tests of this process share."""
    return Sequencer(database, settings.master_keys, settings.log_origin, None)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """Return a client that sends no key."""
    return app.test_client()


@pytest.fixture
def api(app: Flask, tenant: FreshTenant) -> ApiOf:
    """Return a maker of callers: `api()` holds the tenant's root key, `api(key)` that key."""
    return lambda key=tenant.root_key: Api(app.test_client(), key)


@pytest.fixture
def mint(api: ApiOf) -> Mint:
    """Return a minter: `mint("read")`, `mint("write", pin={"agent_id": …, "principal": …})`."""

    def mint_key(role: str, pin: dict[str, str] | None = None) -> str:
        body = {"name": f"a {role} key", "role": role} | ({"pin": pin} if pin else {})
        return str(api().made("/v1/keys", body)["key"])

    return mint_key


@pytest.fixture
def worker(database: Database, tenant: FreshTenant) -> Worker:
    """Return a worker of the tenant's deliveries and jobs, in this process."""
    return Worker(database, tenant)


@pytest.fixture
def webhook(api: ApiOf) -> dict[str, Any]:
    """Return a webhook of the tenant."""
    return make_webhook(api())
