"""Rate limits of keys, tenants and addresses."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from ipaddress import ip_network

import pytest
from flask import Flask

from app.api.http import rate_limit
from app.api.http.services import EXTENSION, Services
from app.core.keys.console_sessions import Token
from app.lib.crypto import api_keys
from app.lib.rates import Rate
from app.settings import SettingError, Settings
from tests.support.callers.api import Api, FreshTenant, application, serving
from tests.support.callers.console import Visitor
from tests.support.callers.making import NOBODY, make_record, make_session, token_to

DAY = 86_400


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


def test_health_checks_are_not_counted_and_keys_apart_from_addresses(
    settings: Settings, tenant: FreshTenant
) -> None:
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
        ("TRUSTED_PROXIES", "10.0.0.0/8, 0.0.0.0/0", "a network of all addresses"),
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
            return int(rate_limit.headers()["RateLimit-Remaining"])

    first, second = spent("2001:db8:1:2::1"), spent("2001:db8:1:2:ffff::2%eth0")
    elsewhere = spent("2001:db8:1:3::1")

    assert second == first - 1
    assert elsewhere == first


@pytest.fixture
def strict(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    """Return an application that allows two requests a day to each key and each address."""
    monkeypatch.setattr(rate_limit, "REFUSALS", Rate(2, DAY))
    twice = Rate(2, DAY)
    with application(replace(settings, rate_limit=twice, address_rate_limit=twice)) as opened:
        yield opened


@contextmanager
def all_connections_taken(app: Flask) -> Iterator[None]:
    """Hold the whole pool of an application: what asks the database is answered 503."""
    here: Services = app.extensions[EXTENSION]
    with ExitStack() as held:
        for _ in range(here.database.pool.size()):
            held.enter_context(here.database.engine.connect())
        yield


def refused_without_the_database(app: Flask, *askers: Api, path: str) -> list[int]:
    """Ask twice by each, then once more by each while no connection is to be had."""
    for each in askers:
        for _ in range(2):
            assert each.get(path).status_code != 429
        # Whoever was let through this often is refused from now on.
        each.get(path)
    with all_connections_taken(app):
        return [each.get(path).status_code for each in askers]


@pytest.mark.parametrize(
    "path", ["/v1/keys/self", "/v1/records", f"/v1/records/rec_{NOBODY}/bundle"]
)
def test_a_key_beyond_its_limit_costs_no_statement(
    strict: Flask, tenant: FreshTenant, path: str
) -> None:
    caller = Api(strict.test_client(), tenant.root_key)
    assert refused_without_the_database(strict, caller, path=path) == [429]


def test_refused_keys_beyond_the_limit_of_their_address_cost_no_statement(
    strict: Flask, tenant: FreshTenant
) -> None:
    known = Api(strict.test_client(), tenant.root_key)
    assert known.get("/v1/keys/self").status_code == 200
    wrong = Api(strict.test_client(), api_keys.new())
    assert refused_without_the_database(strict, wrong, path="/v1/keys/self") == [429]
    with all_connections_taken(strict):
        another = Api(strict.test_client(), api_keys.new())
        assert another.get("/v1/keys/self").status_code == 429
    assert known.get("/v1/keys/self").status_code == 200, "a known key is not affected"


@pytest.mark.parametrize("key", [None, api_keys.new()], ids=["without a key", "with a bad one"])
def test_a_reader_without_a_key_beyond_the_limit_costs_no_statement(
    strict: Flask, settings: Settings, tenant: FreshTenant, key: str | None
) -> None:
    with serving(settings) as api:
        owner = api(tenant.root_key)
        record = make_record(owner, make_session(owner)["id"])
        token, _ = token_to(owner, record)
    reader = Api(strict.test_client(), key)
    path = f"/v1/records/{record['id']}/bundle?share_token={token}"
    assert refused_without_the_database(strict, reader, path=path) == [429]


def test_pages_of_the_console_beyond_the_limit_cost_no_statement(
    strict: Flask, tenant: FreshTenant
) -> None:
    signed_in, stranger = Visitor(strict), Visitor(strict)
    assert signed_in.sign_in(tenant.root_key).status_code == 303
    unknown = Token.new(tenant.id).text
    stranger.client.set_cookie("__Host-console_session", unknown, domain="records.test")
    for each in (signed_in, stranger):
        for _ in range(3):
            each.get("/console/records")
    with all_connections_taken(strict):
        answers = [each.get("/console/records").status_code for each in (signed_in, stranger)]
    assert answers == [429, 429]
