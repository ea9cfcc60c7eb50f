"""Webhooks: made, listed, read, changed and deleted, and every refusal on the way."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import NOBODY, make_session, pin_of, pointers, refused
from tests.support.callers.sending import URL, Worker, books, history, make_findings, make_webhook

SHOWN = {
    "id",
    "url",
    "event_types",
    "description",
    "max_in_flight",
    "status",
    "disabled_reason",
    "held",
    "held_since",
    "health",
    "created_at",
    "updated_at",
}


def actions(api: Api) -> list[tuple[str, dict[str, Any]]]:
    """Return the audited actions on webhooks, newest first, each with its details."""
    entries = api.get("/v1/audit").json["data"]
    return [
        (entry["action"], entry["details"])
        for entry in entries
        if entry["action"].startswith("webhook.")
    ]


# Making


def test_a_new_webhook_shows_its_secret_once(api: ApiOf) -> None:
    made = make_webhook(api())

    assert made.keys() == SHOWN | {"secret"}
    assert made["secret"].startswith("whsec_")
    read = api().get(f"/v1/webhooks/{made['id']}")
    assert read.json == {name: made[name] for name in SHOWN}
    assert made["secret"] not in api().get("/v1/webhooks").text


def test_what_is_left_out_gets_its_default(api: ApiOf) -> None:
    made = make_webhook(api())

    assert made["event_types"] is None
    assert made["description"] is None
    assert made["max_in_flight"] == 4
    assert (made["status"], made["disabled_reason"]) == ("enabled", None)
    assert made["health"] == {
        "consecutive_failures": 0,
        "paused_until": None,
        "failing_since": None,
        "last_success_at": None,
        "slow": False,
        "concurrency": {"now": 0, "allowed": 2},
    }


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


def test_a_lane_and_its_slots_are_made_with_the_webhook(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    make_webhook(api(), max_in_flight=3)

    with database.transaction(tenant.id) as session:
        assert session.scalar(text("SELECT count(*) FROM lanes")) == 1
        assert session.scalars(text("SELECT slot FROM lane_slots ORDER BY slot")).all() == [0, 1, 2]


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
        ({"url": None}, "/url"),
        ({"url": 7}, "/url"),
        ({"url": ""}, "/url"),
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
    assert pointers(api().post("/v1/webhooks", {"url": URL} | fields)) == [pointer]


def test_a_webhook_needs_a_url(api: ApiOf) -> None:
    assert pointers(api().post("/v1/webhooks", {})) == ["/url"]


def test_a_tenant_has_at_most_a_hundred_webhooks(api: ApiOf, tenant: FreshTenant) -> None:
    for _ in range(98):
        make_webhook(api())
    callers = [api() for _ in range(6)]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda one: one.post("/v1/webhooks", {"url": URL}), callers))

    assert sorted(answer.status_code for answer in answers) == [201, 201, 409, 409, 409, 409]
    refused(api().post("/v1/webhooks", {"url": URL}), 409, "too-many-webhooks")
    oldest = api().get("/v1/webhooks?limit=200").json["data"][-1]
    assert api().delete(f"/v1/webhooks/{oldest['id']}").status_code == 204
    assert api().post("/v1/webhooks", {"url": URL}).status_code == 201


def test_a_repeated_request_makes_one_webhook_and_gives_its_secret_again(api: ApiOf) -> None:
    again = {"headers": {"Idempotency-Key": "once"}}
    first = api().post("/v1/webhooks", {"url": URL}, **again)
    second = api().post("/v1/webhooks", {"url": URL}, **again)

    assert second.headers["Idempotent-Replayed"] == "true"
    assert first.json == second.json
    assert len(api().get("/v1/webhooks").json["data"]) == 1


# Reading


def test_webhooks_are_listed_newest_first_in_pages(api: ApiOf) -> None:
    made = [make_webhook(api())["id"] for _ in range(5)]

    first = api().get("/v1/webhooks?limit=3").json
    second = api().get(f"/v1/webhooks?limit=3&cursor={first['next_cursor']}").json

    assert [row["id"] for row in first["data"] + second["data"]] == made[::-1]
    assert second["next_cursor"] is None


def test_health_says_how_the_lane_fares(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 1)
    worker.send(webhook, 200)
    make_findings(api(), 5)
    worker.send(webhook, 503)

    health = api().get(f"/v1/webhooks/{webhook['id']}").json["health"]

    assert health["consecutive_failures"] == 5
    assert health["paused_until"] > health["last_success_at"]


def test_a_pause_that_is_over_is_not_shown(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    worker.run("UPDATE lanes SET paused_until = clock_timestamp() - interval '1 s'")

    assert api().get(f"/v1/webhooks/{webhook['id']}").json["health"]["paused_until"] is None


# Changing


def test_a_change_touches_what_it_names_and_nothing_else(api: ApiOf) -> None:
    made = make_webhook(api(), description="one", event_types=["finding.created"])

    changed = api().patch(f"/v1/webhooks/{made['id']}", {"event_types": None}).json

    untouched = SHOWN - {"event_types", "updated_at"}
    assert changed["event_types"] is None
    assert {name: changed[name] for name in untouched} == {name: made[name] for name in untouched}
    assert changed["updated_at"] > made["updated_at"]
    assert api().get(f"/v1/webhooks/{made['id']}").json == changed


def test_null_clears_a_description(api: ApiOf) -> None:
    made = make_webhook(api(), description="one")

    changed = api().patch(f"/v1/webhooks/{made['id']}", {"description": None})

    assert changed.json["description"] is None


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"url": None}, "/url"),
        ({"url": "https://10.0.0.1/"}, "/url"),
        ({"event_types": []}, "/event_types"),
        ({"max_in_flight": None}, "/max_in_flight"),
        ({"status": "paused"}, "/status"),
        ({"status": None}, "/status"),
        ({"secret": "whsec_AAAA"}, "/secret"),
        ({"id": "whk_" + NOBODY}, "/id"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(
    api: ApiOf, fields: dict[str, Any], pointer: str
) -> None:
    made = make_webhook(api())

    answer = api().patch(f"/v1/webhooks/{made['id']}", {"description": "new"} | fields)

    assert pointers(answer) == [pointer]
    assert api().get(f"/v1/webhooks/{made['id']}").json["description"] is None


def test_a_change_that_changes_nothing_leaves_no_trace(api: ApiOf) -> None:
    made = make_webhook(api())
    before = len(actions(api()))

    for same in ({}, {"url": URL}, {"status": "enabled", "max_in_flight": 4}):
        changed = api().patch(f"/v1/webhooks/{made['id']}", same).json
        assert changed["updated_at"] == made["updated_at"]

    assert len(actions(api())) == before


def test_a_higher_max_in_flight_adds_slots_and_a_lower_one_takes_none_away(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    made = make_webhook(api())
    for most, slots in ((7, 7), (1, 7), (64, 64)):
        api().patch(f"/v1/webhooks/{made['id']}", {"max_in_flight": most})
        with database.transaction(tenant.id) as session:
            assert session.scalar(text("SELECT count(*) FROM lane_slots")) == slots


def test_disabling_cancels_what_was_waiting_and_keeps_the_books(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 3)
    worker.send(webhook, 200, limit=1)

    disabled = api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"}).json
    make_findings(api(), 2)

    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "requested")
    assert [row["status"] for row in history(api(), webhook)].count("cancelled") == 2
    kept = books(api(), webhook)
    assert (kept["accepted"], kept["succeeded"], kept["cancelled"]) == (3, 1, 2)
    assert kept["balanced"]
    assert actions(api())[0] == (
        "webhook.disable",
        {"origin": "http://127.0.0.1:9", "cancelled_deliveries": 2},
    )


def test_enabling_begins_with_a_clean_record(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 6)
    worker.send(webhook, 503)
    api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})

    enabled = api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "enabled"}).json

    assert (enabled["status"], enabled["disabled_reason"]) == ("enabled", None)
    assert enabled["health"]["consecutive_failures"] == 0
    assert enabled["health"]["paused_until"] is None
    assert actions(api())[0][0] == "webhook.enable"
    make_findings(api(), 1)
    assert worker.send(webhook) == 1


def test_another_url_ends_a_pause_and_must_prove_itself(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 1)
    worker.send(webhook, 200)
    make_findings(api(), 6)
    worker.send(webhook, 503, (0.0, 0.0))
    assert worker.send(webhook) == 0

    changed = api().patch(f"/v1/webhooks/{webhook['id']}", {"url": URL + "/new"}).json

    assert changed["health"] == {
        "consecutive_failures": 0,
        "paused_until": None,
        "failing_since": None,
        "last_success_at": None,
        "slow": False,
        "concurrency": {"now": 0, "allowed": 2},
    }
    assert worker.send(webhook) == 6


def test_health_says_how_many_posts_are_out_and_how_many_may_be(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    path = f"/v1/webhooks/{make_webhook(api(), max_in_flight=16)['id']}"
    with database.transaction(tenant.id) as session:
        session.execute(
            text("UPDATE lanes SET concurrency = 11, slow_at = clock_timestamp(), latency_ms = 9")
        )
        session.execute(
            text(
                "UPDATE lane_slots SET holder = gen_random_uuid(), lease_until = clock_timestamp()"
                " + CASE WHEN slot < 3 THEN interval '30 s' ELSE interval '-1 s' END"
                " WHERE slot < 5"
            )
        )
    health = api().get(path).json["health"]
    assert (health["slow"], health["concurrency"]) == (True, {"now": 3, "allowed": 11})
    lowered = api().patch(path, {"max_in_flight": 2}).json["health"]
    assert lowered["concurrency"] == {"now": 3, "allowed": 2}
    anew = api().patch(path, {"url": URL + "/new", "max_in_flight": 9}).json["health"]
    assert (anew["slow"], anew["concurrency"]) == (False, {"now": 3, "allowed": 2})
    (listed,) = api().get("/v1/webhooks").json["data"]
    assert listed["health"] == anew


# Deleting


def test_a_deleted_webhook_is_gone_and_its_history_stays(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 2)
    worker.send(webhook, 200, limit=1)
    path = f"/v1/webhooks/{webhook['id']}"

    assert api().delete(path).status_code == 204

    refused(api().get(path), 404, "not-found")
    refused(api().patch(path, {"description": "new"}), 404, "not-found")
    refused(api().delete(path), 404, "not-found")
    for verb in ("test", "rotate-secret", "replay"):
        refused(api().post(f"{path}/{verb}", {}), 404, "not-found")
    assert api().get("/v1/webhooks").json["data"] == []
    rows = history(api(), webhook)
    assert sorted(row["status"] for row in rows) == ["cancelled", "succeeded"]
    delivery = f"{path}/deliveries/{rows[0]['id']}"
    assert api().get(delivery).json["payload"]["type"] == "finding.created"
    refused(api().post(f"{delivery}/replay"), 404, "not-found")
    assert len(history(api(), webhook, "after=0")) == 2
    assert books(api(), webhook)["balanced"]
    decided = api().get(f"{path}/decisions?event_id={rows[0]['event_id']}")
    assert decided.json["decision"] == "matched"


def test_a_deleted_webhook_gets_nothing_more(api: ApiOf) -> None:
    webhook = make_webhook(api())
    api().delete(f"/v1/webhooks/{webhook['id']}")
    make_findings(api(), 1)

    assert history(api(), webhook) == []


# Audit


def test_each_privileged_action_is_audited_without_the_secret_or_the_path(api: ApiOf) -> None:
    made = make_webhook(api(), url="https://hooks.example.com/token-1?key=token-2")
    path = f"/v1/webhooks/{made['id']}"
    api().patch(path, {"description": "new", "max_in_flight": 2})
    rotated = api().post(f"{path}/rotate-secret", {}).json
    api().patch(path, {"status": "disabled", "event_types": ["finding.created"]})
    api().patch(path, {"status": "enabled"})
    api().delete(path)

    assert [action for action, _ in actions(api())][::-1] == [
        "webhook.create",
        "webhook.update",
        "webhook.rotate_secret",
        "webhook.update",
        "webhook.disable",
        "webhook.enable",
        "webhook.delete",
    ]
    assert actions(api())[-2][1]["changed"] == ["description", "max_in_flight"]
    assert all(details["origin"] == "https://hooks.example.com" for _, details in actions(api()))
    written = api().get("/v1/audit").text
    for secret in ("token-1", "token-2", made["secret"], rotated["secret"]):
        assert secret not in written


# Who may


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


def test_reading_needs_the_read_role_and_changing_the_admin_role(api: ApiOf, mint: Mint) -> None:
    made = make_webhook(api())
    path = f"/v1/webhooks/{made['id']}"
    for role in ("read", "write"):
        caller = api(mint(role))
        assert caller.get("/v1/webhooks").status_code == 200
        assert caller.get(path).status_code == 200
        refused(caller.post("/v1/webhooks", {"url": URL}), 403, "insufficient-role")
        refused(caller.patch(path, {"description": "x"}), 403, "insufficient-role")
        refused(caller.delete(path), 403, "insufficient-role")
        refused(caller.post(f"{path}/rotate-secret", {}), 403, "insufficient-role")


def test_a_pinned_key_is_refused_whatever_its_role(api: ApiOf, mint: Mint) -> None:
    made = make_webhook(api())
    path = f"/v1/webhooks/{made['id']}"
    pinned = api(mint("admin", pin_of(make_session(api()))))

    for answer in (
        pinned.get("/v1/webhooks"),
        pinned.get(path),
        pinned.post("/v1/webhooks", {"url": URL}),
        pinned.patch(path, {"description": "x"}),
        pinned.delete(path),
        pinned.get(f"{path}/accounting"),
    ):
        refused(answer, 403, "pinned-key")


def test_a_stranger_s_webhook_and_one_that_never_was_answer_alike(
    api: ApiOf, other_tenant: FreshTenant
) -> None:
    foreign = make_webhook(api(other_tenant.root_key))["id"]
    unknown, malformed = "whk_" + NOBODY, "whk_1"

    for method, tail, body in (
        ("GET", "", None),
        ("PATCH", "", {"description": "mine now"}),
        ("DELETE", "", None),
        ("POST", "/rotate-secret", {}),
        ("GET", "/accounting", None),
    ):
        options = {} if body is None else {"json": body}
        answers = [
            refused(
                api().request(method, f"/v1/webhooks/{each}{tail}", **options), 404, "not-found"
            )
            for each in (foreign, unknown, malformed)
        ]
        assert answers[0] == answers[1] == answers[2]
    assert api(other_tenant.root_key).get(f"/v1/webhooks/{foreign}").json["description"] is None
