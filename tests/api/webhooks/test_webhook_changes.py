"""Changes and deletion of a webhook, and their effect on its lane."""

from typing import Any

import pytest
from sqlalchemy import text

from app.database import Database
from tests.api.webhooks.audited import CLEAN, SHOWN, actions
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, pointers, refused
from tests.support.callers.sending import URL, Worker, books, history, make_findings, make_webhook


def test_a_change_touches_what_it_names_and_nothing_else(api: ApiOf) -> None:
    made = make_webhook(api(), description="one", event_types=["finding.created"])

    changed = api().patch(f"/v1/webhooks/{made['id']}", {"event_types": None}).json

    untouched = SHOWN - {"event_types", "updated_at"}
    assert changed["event_types"] is None
    assert {name: changed[name] for name in untouched} == {name: made[name] for name in untouched}
    assert changed["updated_at"] > made["updated_at"]
    assert api().get(f"/v1/webhooks/{made['id']}").json == changed
    cleared = api().patch(f"/v1/webhooks/{made['id']}", {"description": None}).json
    assert (cleared["description"], cleared["url"]) == (None, made["url"])


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
    health = api().get(f"/v1/webhooks/{webhook['id']}").json["health"]
    assert health["consecutive_failures"] >= 5
    assert health["paused_until"] > health["last_success_at"]
    assert worker.send(webhook) == 0

    changed = api().patch(f"/v1/webhooks/{webhook['id']}", {"url": URL + "/new"}).json

    assert changed["health"] == CLEAN
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
                "UPDATE lanes SET slot_holders = '{1,2,3,4,5}', slot_leases ="
                " array_fill(clock_timestamp() + interval '30 s', '{3}')"
                " || array_fill(clock_timestamp() - interval '1 s', '{2}')"
            )
        )
    health = api().get(path).json["health"]
    assert (health["slow"], health["concurrency"]) == (True, {"now": 3, "allowed": 11})
    lowered = api().patch(path, {"max_in_flight": 2}).json["health"]
    assert lowered["concurrency"] == {"now": 3, "allowed": 2}
    anew = api().patch(path, {"url": URL + "/new", "max_in_flight": 9}).json["health"]
    assert (anew["slow"], anew["concurrency"]) == (False, {"now": 3, "allowed": 1})
    (listed,) = api().get("/v1/webhooks").json["data"]
    assert listed["health"] == anew


def test_a_deleted_webhook_gets_nothing_more_and_its_history_stays(
    api: ApiOf, worker: Worker
) -> None:
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
    make_findings(api(), 1)
    rows = history(api(), webhook)
    assert sorted(row["status"] for row in rows) == ["cancelled", "succeeded"]
    delivery = f"{path}/deliveries/{rows[0]['id']}"
    assert api().get(delivery).json["payload"]["type"] == "finding.created"
    refused(api().post(f"{delivery}/replay"), 404, "not-found")
    assert len(history(api(), webhook, "after=0")) == 2
    assert books(api(), webhook)["balanced"]
    decided = api().get(f"{path}/decisions?event_id={rows[0]['event_id']}")
    assert decided.json["decision"] == "matched"
