"""`/healthz`, `/readyz` and `/metrics`."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from app import heartbeats
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant, serving
from tests.support.faults import OwnValkey
from tests.support.secrets import MASTER_KEYS


@contextmanager
def frozen() -> Iterator[str]:
    """Run a server that accepts connections and never answers; yield its host and port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_healthz_needs_nothing(settings: Settings) -> None:
    with frozen() as nowhere:
        url = f"postgresql+psycopg://nobody@{nowhere}/nothing"
        with serving(replace(settings, database_url=url)) as api:
            assert api().get("/healthz").json == {"status": "ok"}


def test_readyz_without_redis_is_ready_and_says_what_is_missing(api: ApiOf) -> None:
    answer = api(None).get("/readyz")

    assert answer.status_code == 200
    assert answer.json["status"] == "ready"
    assert answer.json["parts"]["database"] == "up"
    assert answer.json["degraded"] == ["redis", "worker", "scheduler"]


def test_readyz_with_everything_up_has_nothing_degraded(
    settings: Settings, own_valkey: OwnValkey
) -> None:
    redis = Redis.from_url(own_valkey.url)
    with serving(replace(settings, redis_url=own_valkey.url)) as api:
        try:
            redis.delete(heartbeats.REPORTING)
            heartbeats.report(redis, heartbeats.Process("scheduler"))
            assert api().get("/readyz").json["degraded"] == ["worker"]
            heartbeats.report(redis, heartbeats.Process("worker"))
            assert api().get("/readyz").json["degraded"] == []
        finally:
            redis.delete(heartbeats.REPORTING)
            redis.close()


def test_readyz_waits_for_no_frozen_redis(settings: Settings) -> None:
    with frozen() as nowhere, serving(replace(settings, redis_url=f"redis://{nowhere}")) as api:
        # redis-py by itself waits for as long as Redis is frozen: here for ever.
        answer = api().get("/readyz")

    assert answer.status_code == 200
    assert "redis" in answer.json["degraded"]


def test_readyz_is_503_without_the_database(settings: Settings) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://nobody@127.0.0.1:{closed.getsockname()[1]}/nothing"
        with serving(replace(settings, database_url=url)) as api:
            answer = api().get("/readyz")

    assert answer.status_code == 503
    assert answer.json["parts"]["database"] == "away"
    assert answer.headers["Retry-After"] == "2"


@pytest.fixture
def unmigrated(settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    """Settings that name a database without any table."""
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE unmigrated"))
    url = settings.database_url.rpartition("/")[0] + "/unmigrated"
    yield replace(settings, database_url=url)
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE unmigrated WITH (FORCE)"))


def test_readyz_of_a_database_without_tables_names_the_command(unmigrated: Settings) -> None:
    with serving(unmigrated) as api:
        answer = api().get("/readyz")

    assert answer.status_code == 503
    assert "python -m app.manage migrate" in answer.json["parts"]["database"]


def test_a_database_newer_than_the_code_is_ready(fresh_settings: Settings) -> None:
    """While a release migrates, the old one still serves."""
    owner = create_engine(fresh_settings.database_admin_url)
    with owner.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    owner.dispose()

    with serving(fresh_settings) as api:
        assert api().get("/readyz").status_code == 200


def test_readyz_and_metrics_say_since_when_no_run_has_verified_every_chain(
    settings: Settings, tenant: FreshTenant, admin_engine: Engine
) -> None:
    since = "2026-01-01T00:00:00.000000Z"
    sealed = MASTER_KEYS.seal(b'{"since":"%s"}' % since.encode(), "sealed_notes/verify_audit")
    with admin_engine.begin() as connection:
        connection.execute(
            text("INSERT INTO sealed_notes VALUES ('verify_audit', :s)"), {"s": sealed}
        )
    with serving(replace(settings, metrics_token="t")) as api:
        try:
            answer = api().get("/readyz").json
            scraped = api().get("/metrics", headers={"Authorization": "Bearer t"}).text
        finally:
            with admin_engine.begin() as connection:
                connection.execute(text("DELETE FROM sealed_notes"))
        assert "audit" in answer["degraded"]
        assert since in answer["parts"]["audit"]
        assert "ring verify_audit" in answer["parts"]["audit"]
        found = r"(?m)^record_service_audit_unverified_seconds (.+)$"
        seconds = re.search(found, scraped)
        assert seconds is not None
        assert float(seconds[1]) > 26 * 3600
        assert api().readyz().json["parts"]["audit"] == "up"


def test_a_state_that_cannot_be_computed_is_degraded_and_refuses_no_request(
    settings: Settings, admin_engine: Engine
) -> None:
    with serving(settings) as api, admin_engine.begin() as owner:
        owner.execute(text("LOCK TABLE audit_breaks IN ACCESS EXCLUSIVE MODE"))
        answer = api().get("/readyz")
        assert (answer.status_code, answer.json["status"]) == (200, "ready")
        assert {"log", "anchoring", "audit", "master_keys"} < set(answer.json["degraded"])
        assert answer.json["parts"]["audit"].startswith("unknown: never computed")


def test_metrics_open_with_the_operators_token_only(
    settings: Settings, tenant: FreshTenant
) -> None:
    with serving(replace(settings, metrics_token="t0ken")) as api:
        for wrong in ("", "Bearer", "Bearer t0ke", "Bearer t0ken2", "t0ken", "Bearer é"):
            assert api().get("/metrics", headers={"Authorization": wrong}).status_code == 401
        api(tenant.root_key).get("/v1/keys/self")
        answer = api().get("/metrics", headers={"Authorization": "Bearer t0ken"})

    assert answer.status_code == 200
    counted = r'http_requests_total\{method="GET",route="/v1/keys/self",status="200"\} \d+'
    assert re.search(counted, answer.text)
    assert "record_service_bell_skipped_total " in answer.text


def test_unknown_paths_and_methods_make_no_time_series(settings: Settings) -> None:
    with serving(replace(settings, metrics_token="t")) as api:
        for number in range(5):
            api().get(f"/nothing/{number}?secret=1")
            api().request(f"X{number}", "/nothing")
        scraped = api().get("/metrics", headers={"Authorization": "Bearer t"}).text

    assert "/nothing" not in scraped
    assert 'method="X' not in scraped
    assert 'method="other"' in scraped
