"""What operators and browsers see: health, metrics, documentation, headers, log lines, limits."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from app import heartbeats
from app.api.http.access import rate_limit
from app.database import Database
from app.dev.stores.postgres import EmbeddedPostgres
from app.lib.crypto import api_keys
from app.lib.rates import Rate
from app.settings import SettingError, Settings
from tests.support.callers.api import ApiOf, FreshTenant, serving
from tests.support.faults import OwnValkey
from tests.support.secrets import MASTER_KEYS

DAY = 86_400


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
    settings: Settings, own_valkey: OwnValkey
) -> None:
    redis = Redis.from_url(own_valkey.url)
    with serving(replace(settings, redis_url=own_valkey.url)) as api:
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
        assert api().readyz().json["parts"]["audit"] == "up"


def test_a_state_that_nobody_can_compute_is_degraded_and_no_reason_to_refuse_requests(
    settings: Settings, admin_engine: Engine
) -> None:
    with serving(settings) as api, admin_engine.begin() as owner:
        owner.execute(text("LOCK TABLE audit_breaks IN ACCESS EXCLUSIVE MODE"))
        answer = api().get("/readyz")
        assert (answer.status_code, answer.json["status"]) == (200, "ready")
        assert {"log", "anchoring", "audit", "master_keys"} < set(answer.json["degraded"])
        assert answer.json["parts"]["audit"].startswith("unknown: never computed")


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


def test_the_root_leads_to_the_console(api: ApiOf) -> None:
    assert api(None).get("/").headers["Location"] == "/console"


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


def test_a_body_is_documented_as_required_exactly_where_one_is(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json
    required = {
        f"{method} {path}": operation["requestBody"].get("required", False)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters" and "requestBody" in operation
    }
    assert {route for route, is_required in required.items() if not is_required} == {
        "patch /v1/agents/{agent_id}",
        "patch /v1/tenant/settings",
        "patch /v1/webhooks/{webhook_id}",
        "post /v1/deliveries/replay",
        "post /v1/records/{record_id}/share-links",
        "post /v1/webhooks/{webhook_id}/replay",
        "post /v1/webhooks/{webhook_id}/retry-now",
        "post /v1/webhooks/{webhook_id}/rotate-secret",
    }
    for route, is_required in required.items():
        method, _, path = route.partition(" ")
        sent = api().request(method.upper(), path.replace("{", "").replace("}", ""))
        assert (sent.status_code == 400) == is_required, route


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
    first, second, third = [line for line in lines if line["event"] == "request"]
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
    with serving(replace(settings, rate_limit=Rate(3, DAY))) as api:
        caller = api(tenant.root_key)
        answers = [caller.get("/v1/keys/self") for _ in range(4)]
        minted = api().get("/v1/keys/self")

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0].headers["RateLimit-Limit"] == "3"
    assert answers[3].headers["Retry-After"] == answers[3].headers["RateLimit-Reset"]
    assert answers[3].mimetype == "application/problem+json"
    assert minted.status_code == 401


def test_health_checks_are_not_counted_and_never_refused(settings: Settings) -> None:
    """A load balancer may have the address of everybody behind a router."""
    with serving(replace(settings, address_rate_limit=Rate(1, DAY))) as api:
        for path in ("/healthz", "/readyz"):
            assert [api().get(path).status_code for _ in range(3)] == [200] * 3
        assert api().get("/problems/not-found").status_code == 200
        assert api().get("/problems/not-found").status_code == 429
        for path in ("/healthz", "/readyz"):
            answer = api().get(path)
            assert answer.status_code == 200
            assert "RateLimit-Limit" not in answer.headers


def test_callers_without_a_key_are_counted_apart_from_keys(
    settings: Settings, tenant: FreshTenant
) -> None:
    with serving(replace(settings, address_rate_limit=Rate(1, DAY))) as api:
        assert api().get("/problems/not-found").status_code == 200
        assert api().get("/problems/not-found").status_code == 429
        assert api(tenant.root_key).get("/v1/keys/self").status_code == 200


def test_the_keys_of_a_tenant_share_a_rate(
    settings: Settings, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    with serving(replace(settings, tenant_rate_limit=Rate(3, DAY))) as api:
        root = api(tenant.root_key)
        another = api(root.post("/v1/keys", {"name": "n", "role": "read"}).json["key"])
        answers = [each.get("/v1/keys/self") for each in (root, another, root)]
        strangers = api(other_tenant.root_key).get("/v1/keys/self")

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "by the keys of this tenant" in answers[2].json["detail"]
    assert strangers.status_code == 200


def test_callers_behind_a_trusted_proxy_are_counted_apart(settings: Settings) -> None:
    behind = replace(
        settings, address_rate_limit=Rate(1, DAY), trusted_proxies=(ip_network("127.0.0.0/8"),)
    )

    def statuses(settings: Settings) -> list[int]:
        with serving(settings) as api:
            return [
                api().get("/problems/busy", headers={"X-Forwarded-For": sent}).status_code
                for sent in ("203.0.113.1", "203.0.113.2", "198.51.100.1, 203.0.113.1")
            ]

    assert statuses(behind) == [200, 200, 429]
    assert statuses(replace(behind, trusted_proxies=())) == [200, 429, 429]
    assert statuses(replace(behind, proxy_header="Forwarded")) == [200, 429, 429]


def test_a_refused_key_is_logged_with_its_address_and_never_itself(
    settings: Settings, tenant: FreshTenant, capsys: pytest.CaptureFixture[str]
) -> None:
    refused_key = api_keys.new()
    with serving(replace(settings, trusted_proxies=(ip_network("127.0.0.0/8"),))) as api:
        capsys.readouterr()
        sent = {"X-Forwarded-For": "203.0.113.77"}
        answer = api(refused_key).get("/v1/keys/self", headers=sent)
        api(tenant.root_key).get("/v1/keys/self", headers=sent)
        api().get("/v1/keys/self", headers=sent)
    logged = capsys.readouterr().out
    lines = [json.loads(line) for line in logged.splitlines()]

    (line,) = [each for each in lines if each["event"] == "key_refused"]
    assert line["address"] == "203.0.113.77"
    assert line["route"] == "/v1/keys/self"
    assert line["request_id"] == answer.headers["x-request-id"]
    assert refused_key not in logged
    assert {each["address"] for each in lines if each["event"] == "request"} == {"203.0.113.77"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RATE_LIMIT", "many", "300 per minute"),
        ("TENANT_RATE_LIMIT", "5 per fortnight", "300 per minute"),
        ("ADDRESS_RATE_LIMIT", "0/minute", "300 per minute"),
        ("TRUSTED_PROXIES", "10.0.0.0/8, 0.0.0.0/0", "everybody is no proxy"),
        ("TRUSTED_PROXIES", "the router", "the router"),
        ("PROXY_HEADER", "X-Real-IP", "X-Forwarded-For or Forwarded"),
    ],
)
def test_a_limit_that_cannot_be_read_names_the_variable(
    environ: dict[str, str], name: str, value: str, said: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} is wrong: .*{said}"):
        Settings.from_environ({**environ, name: value})


def test_addresses_of_one_ipv6_network_count_as_one(app: Flask) -> None:
    def spent(address: str) -> int:
        with app.test_request_context(environ_base={"REMOTE_ADDR": address}):
            rate_limit.count_address()
            answer = rate_limit.add_headers(app.response_class())
            return int(answer.headers["RateLimit-Remaining"])

    first, second = spent("2001:db8:1:2::1"), spent("2001:db8:1:2:ffff::2%eth0")
    elsewhere = spent("2001:db8:1:3::1")

    assert second == first - 1
    assert elsewhere == first
