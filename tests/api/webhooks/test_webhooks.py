"""Webhooks are made, listed and shown."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.settings import Settings
from tests.api.webhooks.audited import SHOWN, actions
from tests.support.callers.api import ApiOf, FreshTenant, Mint, serving
from tests.support.callers.making import pointers, refused
from tests.support.callers.sending import URL, Worker, make_findings, make_webhook


def test_a_new_webhook_shows_its_secret_once(api: ApiOf) -> None:
    made = make_webhook(api())

    assert made.keys() == SHOWN | {"secret"}
    assert made["secret"].startswith("whsec_")
    read = api().get(f"/v1/webhooks/{made['id']}")
    assert read.json == {name: made[name] for name in SHOWN}
    assert made["secret"] not in api().get("/v1/webhooks").text


def test_every_field_that_is_sent_is_kept(api: ApiOf) -> None:
    sent = {
        "url": "https://hooks.example.com/records?team=risk",
        "event_types": ["session.completed", "finding.created"],
        "description": "the risk team's",
        "max_in_flight": 64,
    }

    made = make_webhook(api(), **sent)

    assert {name: made[name] for name in sent} == sent


def test_the_secret_rests_sealed(api: ApiOf, admin_engine: Engine) -> None:
    made = make_webhook(api())

    with admin_engine.connect() as connection:
        stored = connection.scalars(text("SELECT sealed_secrets FROM webhooks")).all()
    assert stored
    assert all(made["secret"].encode() not in bytes(each) for each in stored)
    assert all(made["secret"][6:].encode() not in bytes(each) for each in stored)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://hooks.example.com/", "https://"),
        ("hooks.example.com/records", "https://"),
        ("https://user:pass@hooks.example.com/", "credentials"),
        ("https://10.0.0.1/", "not public"),
        ("https://2130706433/", "unusual form"),
        ("https://0x7f.1/", "unusual form"),
        ("https://[::ffff:10.0.0.1]/", "IPv6"),
        ("https://hooks.internal/", "network"),
        ("https://hooks.example.com/#part", "fragment"),
        ("https://hooks.example.com/a b", "space"),
        ("http://93.184.216.34/", "https://"),
    ],
)
def test_a_url_that_could_never_be_sent_to_is_refused_with_its_reason(
    api: ApiOf, url: str, part: str
) -> None:
    answer = api().post("/v1/webhooks", {"url": url})

    assert pointers(answer) == ["/url"]
    assert part in answer.json["errors"][0]["detail"]
    assert api().get("/v1/webhooks").json["data"] == []


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"url": ...}, "/url"),
        ({"url": None}, "/url"),
        ({"url": 7}, "/url"),
        ({"url": ""}, "/url"),
        ({"url": "https://example.com/?note=50%"}, "/url"),
        ({"url": "https://example.com/a b"}, "/url"),
        ({"url": "https://example.com/" + "a" * 2048}, "/url"),
        ({"event_types": []}, "/event_types"),
        ({"event_types": "finding.created"}, "/event_types"),
        ({"event_types": ["finding.deleted"]}, "/event_types/0"),
        ({"event_types": ["finding.created", None]}, "/event_types/1"),
        ({"event_types": ["finding.created", "finding.created"]}, "/event_types"),
        ({"event_types": ["finding.created"] * 1000}, "/event_types"),
        ({"max_in_flight": 0}, "/max_in_flight"),
        ({"max_in_flight": 65}, "/max_in_flight"),
        ({"max_in_flight": "4"}, "/max_in_flight"),
        ({"max_in_flight": True}, "/max_in_flight"),
        ({"max_in_flight": 1.5}, "/max_in_flight"),
        ({"max_in_flight": None}, "/max_in_flight"),
        ({"description": 7}, "/description"),
        ({"description": "a\u0000b"}, "/description"),
        ({"description": "a" * 2001}, "/description"),
        ({"secret": "whsec_AAAA"}, "/secret"),
        ({"status": "disabled"}, "/status"),
    ],
)
def test_a_wrong_field_is_refused_and_named(
    api: ApiOf, fields: dict[str, Any], pointer: str
) -> None:
    sent = {name: value for name, value in ({"url": URL} | fields).items() if value is not ...}
    assert pointers(api().post("/v1/webhooks", sent)) == [pointer]


def test_a_tenant_has_no_more_webhooks_than_its_operator_allows(
    settings: Settings, tenant: FreshTenant
) -> None:
    assert settings.max_webhooks == 100
    with serving(replace(settings, max_webhooks=3)) as api:
        key = tenant.root_key
        make_webhook(api(key))
        callers = [api(key) for _ in range(6)]

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda one: one.post("/v1/webhooks", {"url": URL}), callers))

        assert sorted(answer.status_code for answer in answers) == [201, 201, 409, 409, 409, 409]
        refused(api(key).post("/v1/webhooks", {"url": URL}), 409, "too-many-webhooks")
        oldest = api(key).get("/v1/webhooks?limit=200").json["data"][-1]
        assert api(key).delete(f"/v1/webhooks/{oldest['id']}").status_code == 204
        assert api(key).post("/v1/webhooks", {"url": URL}).status_code == 201


@pytest.mark.parametrize("status", [401, 403, 404, 301, 308])
def test_a_receiver_that_refuses_everything_is_refusing_until_another_url_is_given(
    api: ApiOf, worker: Worker, status: int
) -> None:
    webhook = make_webhook(api())
    path = f"/v1/webhooks/{webhook['id']}"
    make_findings(api(), 1)
    worker.send(webhook, 200)
    make_findings(api(), 9)
    worker.send(webhook, status)
    assert api().get(path).json["health"]["state"] == "ok"
    make_findings(api(), 1)
    worker.send(webhook, status)

    health = api().get(path).json["health"]

    assert (health["state"], health["refused_status"]) == ("refusing", status)
    assert health["refusing_since"] > health["last_success_at"]
    (listed,) = api().get("/v1/webhooks").json["data"]
    assert listed["health"] == health
    assert api().patch(path, {"held": True}).json["health"]["state"] == "held"
    changed = api().patch(path, {"held": False, "url": URL + "/new"}).json["health"]
    assert (changed["state"], changed["refusing_since"]) == ("ok", None)


def test_a_new_receiver_that_refuses_its_first_delivery_is_refusing_after_ten_minutes(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 1)
    worker.send(webhook, 404)
    path = f"/v1/webhooks/{webhook['id']}"
    assert api().get(path).json["health"]["state"] == "ok"
    worker.run("UPDATE lanes SET unsuccessful_since = unsuccessful_since - interval '10 minutes'")
    assert api().get(path).json["health"]["state"] == "refusing"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("paused_until = clock_timestamp() - interval '1 s'", "ok"),
        ("slow_at = clock_timestamp()", "slow"),
        ("failing_since = clock_timestamp()", "failing"),
        ("paused_until = clock_timestamp() + interval '1 h', failing_since = now()", "paused"),
    ],
)
def test_health_has_one_state(api: ApiOf, worker: Worker, change: str, state: str) -> None:
    path = f"/v1/webhooks/{make_webhook(api())['id']}"
    worker.run(f"UPDATE lanes SET {change}")
    health = api().get(path).json["health"]
    assert (health["state"], health["paused_until"] is not None) == (state, state == "paused")
    disabled = api().patch(path, {"status": "disabled"}).json
    assert disabled["health"]["state"] == "disabled"


def test_each_privileged_action_is_audited_without_the_secret_or_the_path(api: ApiOf) -> None:
    made = make_webhook(api(), url="https://hooks.example.com/token-1?key=token-2")
    path = f"/v1/webhooks/{made['id']}"
    api().patch(path, {"description": "new", "max_in_flight": 2})
    rotated = api().post(f"{path}/rotate-secret", {}).json
    api().patch(path, {"status": "disabled", "event_types": ["finding.created"]})
    api().patch(path, {"status": "enabled"})
    api().patch(path, {"url": "https://other.example.com/token-3"})
    api().delete(path)

    assert [action for action, _ in actions(api())][::-1] == [
        "webhook.create",
        "webhook.update",
        "webhook.rotate_secret",
        "webhook.update",
        "webhook.disable",
        "webhook.enable",
        "webhook.update",
        "webhook.delete",
    ]
    assert actions(api())[-2][1]["changed"] == {
        "description": {"old": None, "new": "new"},
        "max_in_flight": {"old": 4, "new": 2},
    }
    told = actions(api())
    shown = {"old": "https://hooks.example.com/***", "new": "https://other.example.com/***"}
    assert told[1][1]["changed"] == {"url": shown}
    assert {each["origin"] for _, each in told[2:]} == {"https://hooks.example.com"}
    written = api().get("/v1/audit").text
    for secret in ("token-1", "token-2", "token-3", made["secret"], rotated["secret"]):
        assert secret not in written


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://hooks.example.com/services/T0/B0/XyZ", "https://hooks.example.com/***"),
        ("https://hooks.example.com:8443/?token=abc", "https://hooks.example.com:8443/***"),
        ("https://hooks.example.com?token=abc", "https://hooks.example.com/***"),
        ("https://hooks.example.com/", "https://hooks.example.com/"),
        ("https://hooks.example.com", "https://hooks.example.com"),
    ],
)
def test_path_and_query_of_the_url_are_masked_for_read_keys(
    api: ApiOf, mint: Mint, url: str, masked: str
) -> None:
    made = make_webhook(api(), url=url)
    for role, shown in (("read", masked), ("write", url), ("admin", url)):
        holder = api(mint(role))
        assert holder.get(f"/v1/webhooks/{made['id']}").json["url"] == shown
        assert [each["url"] for each in holder.get("/v1/webhooks").json["data"]] == [shown]
