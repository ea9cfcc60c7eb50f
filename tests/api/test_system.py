"""What operators and browsers see: health, metrics, documentation, headers, log lines, limits."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from app import heartbeats
from app.api import limits
from app.api.limits import Counter, Rate
from app.api.services import EXTENSION
from app.database import Database
from app.dev.postgres import EmbeddedPostgres
from app.dev.valkey import EmbeddedValkey
from app.settings import SettingError, Settings
from app.web import create_app
from tests.conftest import Api, FreshTenant
from tests.secrets import MASTER_KEYS

ApiOf = Callable[..., Api]


@contextmanager
def serving(settings: Settings) -> Iterator[ApiOf]:
    """An application with settings of its own; yields a maker of callers: `api()` has no key."""
    created = create_app(settings)
    try:
        yield lambda key=None: Api(created.test_client(), key)
    finally:
        created.extensions[EXTENSION].close()


@contextmanager
def frozen() -> Iterator[str]:
    """A server that accepts connections and never says a word; yields its host and port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


# Health and readiness


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
    settings: Settings, valkey: EmbeddedValkey
) -> None:
    redis = Redis.from_url(valkey.url)
    with serving(replace(settings, redis_url=valkey.url)) as api:
        try:
            heartbeats.beat(redis, "scheduler")
            redis.delete(heartbeats.key("worker"))
            assert api().get("/readyz").json["degraded"] == ["worker"]
            heartbeats.beat(redis, "worker")
            assert api().get("/readyz").json["degraded"] == []
        finally:
            redis.delete(*(heartbeats.key(role) for role in heartbeats.ROLES))
            redis.close()


def test_readyz_waits_for_no_frozen_redis(settings: Settings) -> None:
    with frozen() as nowhere, serving(replace(settings, redis_url=f"redis://{nowhere}")) as api:
        began = time.monotonic()
        answer = api().get("/readyz")
        took = time.monotonic() - began

    assert answer.status_code == 200
    assert "redis" in answer.json["degraded"]
    # Half a second; redis-py by itself waits for as long as Redis is frozen.
    assert took < 8


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


def test_a_database_newer_than_the_code_is_ready(
    settings: Settings, fresh_database: Database, postgres: EmbeddedPostgres
) -> None:
    """While a release migrates, the old one still serves."""
    url = fresh_database.engine.url.render_as_string(hide_password=False)
    owner = create_engine(
        settings.database_admin_url.rpartition("/")[0]
        + "/"
        + str(fresh_database.engine.url.database)
    )
    with owner.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    owner.dispose()

    with serving(replace(settings, database_url=url)) as api:
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
        assert api().get("/readyz").json["parts"]["audit"] == "up"


# Metrics


def test_metrics_do_not_exist_without_a_token(api: ApiOf) -> None:
    assert api(None).get("/metrics").status_code == 404


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


# Documentation


def test_the_root_leads_to_the_documentation(api: ApiOf) -> None:
    assert api(None).get("/").headers["Location"] == "/docs"


def test_the_documentation_needs_nothing_from_elsewhere(api: ApiOf) -> None:
    page = api(None).get("/docs")

    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script(?! src=\"[a-z/.-]+\" defer></script>)", page.text) == []
    for reference in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        with api(None).get(f"/{reference}") as file:
            assert file.status_code == 200, reference


@pytest.mark.parametrize("name", ["index.css", "LICENSE", "..%2Findex.css", "../VERSION", "x"])
def test_only_the_pages_own_files_are_served(api: ApiOf, name: str) -> None:
    assert api(None).get(f"/docs/{name}").status_code == 404


def test_the_document_names_the_address_and_the_ways_to_send_a_key(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json

    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "https://records.test"}]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "apiKey"}
    assert document["security"] == [{"bearer": []}, {"apiKey": []}]


def test_every_operation_documents_its_refusals(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            documented = operation["responses"].keys()
            assert operation["summary"], (method, path)
            if operation.get("security") != []:
                assert documented >= {"401", "403", "422", "429", "503"}, (method, path)
            if "{" in path:
                assert "404" in documented, (method, path)
            if "requestBody" in operation:
                assert documented >= {"400", "413", "415"}, (method, path)


def test_ids_in_paths_are_documented_with_their_form(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json
    for path, item in document["paths"].items():
        for parameter in item.get("parameters", ()):
            if parameter["in"] == "path":
                form = parameter["schema"]
                assert "pattern" in form or form["type"] == "integer", (path, parameter["name"])


# Headers


def test_every_answer_carries_the_security_headers(api: ApiOf) -> None:
    for answer in (api(None).get("/docs"), api(None).get("/nothing"), api().get("/v1/keys")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "max-age=" in answer.headers["Strict-Transport-Security"]


def test_https_is_demanded_only_where_the_service_has_it(settings: Settings) -> None:
    with serving(replace(settings, base_url="http://127.0.0.1:8000")) as api:
        assert "Strict-Transport-Security" not in api().get("/healthz").headers


def test_answers_to_a_key_are_stored_nowhere(api: ApiOf) -> None:
    assert api().get("/v1/keys").headers["Cache-Control"] == "no-store"
    assert api(None).get("/v1/keys").headers["Cache-Control"] == "no-store"


# Log lines


def test_a_request_is_one_line_without_anything_secret(
    settings: Settings, tenant: FreshTenant, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(settings) as api:
        caller = api(tenant.root_key)
        key_id = caller.get("/v1/keys/self").json["id"]
        capsys.readouterr()
        caller.get("/v1/keys?cursor=hidden", headers={"x-request-id": "line-1"})
        caller.delete("/v1/keys/hidden-id")
        api().get("/v1/keys", headers={"x-api-key": "svc_hidden"})

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    first, second, third = lines
    assert first["request_id"] == "line-1"
    assert (first["method"], first["route"], first["status"]) == ("GET", "/v1/keys", 422)
    assert first["key_id"] == key_id
    assert first["duration_ms"] > 0
    assert second["route"] == "/v1/keys/<key_id>"
    assert third["key_id"] is None
    assert "hidden" not in str(lines)
    assert tenant.root_key not in str(lines)


# Rate limits


def test_a_key_that_asks_too_often_is_told_when_to_come_back(
    settings: Settings, tenant: FreshTenant
) -> None:
    with serving(replace(settings, rate_limit="3 per day")) as api:
        caller = api(tenant.root_key)
        answers = [caller.get("/v1/keys/self") for _ in range(4)]
        minted = api().get("/v1/keys/self")

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0].headers["RateLimit-Limit"] == "3"
    assert answers[3].headers["Retry-After"] == answers[3].headers["RateLimit-Reset"]
    assert answers[3].mimetype == "application/problem+json"
    assert minted.status_code == 401


def test_health_checks_are_counted_apart_from_keys(settings: Settings, tenant: FreshTenant) -> None:
    with serving(replace(settings, rate_limit="2 per day")) as api:
        for _ in range(2):
            assert api().get("/healthz").status_code == 200
        assert api().get("/problems/not-found").status_code == 429
        assert api(tenant.root_key).get("/v1/keys/self").status_code == 200


def test_a_new_window_begins_with_a_full_measure() -> None:
    now = [59.5]
    counter = Counter(Rate(2, 60), clock=lambda: now[0])

    assert [counter.hit("a").exceeded for _ in range(3)] == [False, False, True]
    assert counter.hit("a").resets_in == 1
    assert not counter.hit("b").exceeded
    now[0] = 60.0
    assert not counter.hit("a").exceeded


def test_a_flood_of_callers_does_not_fill_the_memory() -> None:
    counter = Counter(Rate(1, 60), clock=lambda: 0.0)
    for number in range(250_000):
        counter.hit(number)

    assert len(counter._counts) <= 100_000


@pytest.mark.parametrize("rate", ["300 per minute", "300/minute", "1 per second", "5/day"])
def test_a_rate_is_a_number_and_a_unit(rate: str) -> None:
    assert Rate.parse(rate).limit == int(re.split(r"\D", rate)[0])


@pytest.mark.parametrize("rate", ["", "0 per minute", "-1/minute", "many", "5 per fortnight", "5"])
def test_a_rate_that_cannot_be_read_names_the_variable(rate: str) -> None:
    with pytest.raises(SettingError, match="RATE_LIMIT"):
        Rate.parse(rate)


def test_addresses_of_one_ipv6_network_count_as_one(app: Flask) -> None:
    def spent(address: str) -> int:
        with app.test_request_context(environ_base={"REMOTE_ADDR": address}):
            limits.count_address()
            answer = limits.add_headers(app.response_class())
            return int(answer.headers["RateLimit-Remaining"])

    first, second = spent("2001:db8:1:2::1"), spent("2001:db8:1:2:ffff::2%eth0")
    elsewhere = spent("2001:db8:1:3::1")

    assert second == first - 1
    assert elsewhere == first
