"""What every test stands on: a real PostgreSQL, migrated once a test process, and a fresh tenant a
test.

Tests are apart by tenant, as customers are; the few that need an empty database make one from the
migrated template.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from sqlalchemy import Engine, create_engine, text
from werkzeug.test import TestResponse

from app import database as database_module
from app import migrations
from app.api.services import EXTENSION
from app.core import tenants
from app.core.log.keeper import Keeper
from app.database import Database
from app.dev.postgres import EmbeddedPostgres
from app.dev.valkey import EmbeddedValkey
from app.settings import Settings
from app.web import create_app
from jobs.runtime import Runtime
from tests.secrets import MASTER_KEYS, MASTER_KEYS_SETTING

# How long examples take says more of what else the machine does than of the code.
hypothesis_settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
hypothesis_settings.load_profile("tests")


# What the service sets for each of its transactions.
PATIENCE, SET_TENANT = database_module._PATIENCE, database_module._SET_TENANT


@pytest.fixture(scope="session", autouse=True)
def machine_that_stands_still() -> Iterator[None]:
    """Let no transaction of the tests' own process end because that got no processor for 5 s.

    `tests/core/test_idle_transactions.py` has the 5 s back.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in [("_PATIENCE", PATIENCE), ("_SET_TENANT", SET_TENANT)]:
            assert "'5s'" in value
            monkeypatch.setattr(database_module, name, value.replace("'5s'", "'60s'"))
        yield


@dataclass(frozen=True)
class FreshTenant:
    """A tenant nobody else uses, with the text of its root admin key."""

    id: UUID
    root_key: str


class Answer(TestResponse):
    """An answer whose JSON is there: what a test expects of it, it asserts."""

    json: Any


class Api:
    """The HTTP API as one key's holder sees it."""

    def __init__(self, client: FlaskClient, key: str | None) -> None:
        self._client = client
        self._key = key

    def request(self, method: str, path: str, **options: Any) -> Answer:
        """Send one request; extra keyword arguments are the test client's."""
        headers = dict(options.pop("headers", {}))
        if self._key is not None:
            headers.setdefault("Authorization", f"Bearer {self._key}")
        return cast(Answer, self._client.open(path, method=method, headers=headers, **options))

    def get(self, path: str, **options: Any) -> Answer:
        """GET `path`."""
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> Answer:
        """POST `json` to `path`, or no body."""
        if json is not None:
            options["json"] = json
        return self.request("POST", path, **options)

    def patch(self, path: str, json: Any, **options: Any) -> Answer:
        """PATCH `path` with `json`."""
        return self.request("PATCH", path, json=json, **options)

    def delete(self, path: str, **options: Any) -> Answer:
        """DELETE `path`."""
        return self.request("DELETE", path, **options)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Run a PostgreSQL for this test process, migrated to this release."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        migrations.migrate(_sqlalchemy(server.admin_url), app_url=_sqlalchemy(server.url))
        yield server


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """Run a Valkey for this test process."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def environ(postgres: EmbeddedPostgres) -> dict[str, str]:
    """Return the environment of a service on the test's servers, without Redis."""
    return {
        "DATABASE_URL": postgres.url,
        "DATABASE_ADMIN_URL": postgres.admin_url,
        "MASTER_KEYS": MASTER_KEYS_SETTING,
        "BASE_URL": "https://records.test",
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
    }


@pytest.fixture(scope="session")
def settings(environ: dict[str, str]) -> Settings:
    """Return the settings of that service."""
    return Settings.from_environ(environ)


@pytest.fixture(scope="session")
def database(settings: Settings) -> Iterator[Database]:
    """Return the database as the service's own role sees it."""
    opened = Database(settings.database_url, pool_size=20, application="tests")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def admin_engine(settings: Settings) -> Iterator[Engine]:
    """Return an engine of the database's owner, whom no wall binds: for attacks and for looking."""
    engine = create_engine(settings.database_admin_url)
    yield engine
    engine.dispose()


@contextmanager
def made_database(settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    """Make an empty, migrated database for the length of a `with`; yield settings that name it."""
    name = f"fresh_{secrets.token_hex(6)}"
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    admin_url = _other_database(settings.database_admin_url, name)
    app_url = _other_database(settings.database_url, name)
    migrations.migrate(admin_url, app_url=app_url)
    yield replace(settings, database_url=app_url, database_admin_url=admin_url)
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def fresh_database(
    postgres: EmbeddedPostgres, settings: Settings, admin_engine: Engine
) -> Iterator[Database]:
    """Return an empty, migrated database of this test's own."""
    with made_database(settings, admin_engine) as own:
        opened = Database(own.database_url, application="tests")
        yield opened
        opened.close()


@pytest.fixture
def forgotten_breaks(admin_engine: Engine) -> Iterator[None]:
    """Forget, after a test that breaks chains, what was found: others ask whether all is well."""
    yield
    with admin_engine.begin() as connection:
        connection.execute(text("DELETE FROM audit_breaks"))


@pytest.fixture(scope="session")
def log_settings(
    postgres: EmbeddedPostgres, settings: Settings, admin_engine: Engine
) -> Iterator[Settings]:
    """Return settings that name a database for tests that need a log to themselves."""
    with made_database(settings, admin_engine) as own:
        yield own


@pytest.fixture(scope="session")
def log_owner(log_settings: Settings) -> Iterator[Engine]:
    """Return an engine of that database's owner."""
    engine = create_engine(log_settings.database_admin_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def log_runtime(log_settings: Settings) -> Iterator[Runtime]:
    """Return what a worker on that database holds, without Redis."""
    opened = Runtime.open(replace(log_settings, redis_url=None), threads=4)
    yield opened
    opened.close()


@pytest.fixture
def tenant(database: Database) -> FreshTenant:
    """Return a tenant of this test's own."""
    return FreshTenant(*tenants.create(database, MASTER_KEYS, "the test's tenant"))


@pytest.fixture
def other_tenant(database: Database) -> FreshTenant:
    """Return a stranger."""
    return FreshTenant(*tenants.create(database, MASTER_KEYS, "a stranger"))


@pytest.fixture(scope="session")
def app(settings: Settings, database: Database) -> Iterator[Flask]:
    """Return the web application on the test's servers."""
    created = create_app(settings)
    yield created
    created.extensions[EXTENSION].close()


@pytest.fixture
def log(database: Database, settings: Settings) -> Keeper:
    """Return the keeper of the log that all tests of this process share: others add to it, too."""
    return Keeper(database, settings.master_keys, settings.log_origin, None)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """Return a client that sends no key."""
    return app.test_client()


@pytest.fixture
def api(app: Flask, tenant: FreshTenant) -> Callable[..., Api]:
    """Return a maker of callers: `api()` holds the tenant's root key, `api(key)` that key."""
    return lambda key=tenant.root_key: Api(app.test_client(), key)


@pytest.fixture
def mint(api: Callable[..., Api]) -> Callable[..., str]:
    """Return a minter: `mint("read")`, `mint("write", pin={"agent_id": …, "principal": …})`."""

    def mint_key(role: str, pin: dict[str, str] | None = None) -> str:
        body = {"name": f"a {role} key", "role": role} | ({"pin": pin} if pin else {})
        answer = api().post("/v1/keys", body)
        assert answer.status_code == 201, answer.json
        return str(answer.json["key"])

    return mint_key


def _sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def _other_database(url: str, name: str) -> str:
    return f"{url.rpartition('/')[0]}/{name}"
