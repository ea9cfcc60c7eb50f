"""Event types and their schemas; what was decided for a webhook, and what became of it."""

import re
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest

from app.api.resources.events import CATALOGUE
from app.core.delivery import cancelling
from app.core.delivery.event_types import EventType
from app.core.delivery.lanes import lanes
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, finding_of, make_session, refused, uuid_of
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook


def validator(name: str) -> Any:
    schema = dict(CATALOGUE[EventType(name)].data_schema)
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


def payload_of(api: Api, event_id: str) -> dict[str, Any]:
    answer = api.get(f"/v1/events/{event_id}")
    assert answer.status_code == 200, answer.json
    payload: dict[str, Any] = answer.json["payload"]
    return payload


def test_every_type_is_described_with_an_example_that_fits(api: ApiOf) -> None:
    listed = api().get("/v1/event-types").json["data"]

    assert [entry["type"] for entry in listed] == [
        "finding.created",
        "session.completed",
        "record.created",
        "session.opened",
        "webhook.test",
        "webhook.failing",
        "webhook.disabled",
        "audit.chain_broken",
        "history.rolled_back",
    ]
    for entry in listed:
        assert entry["description"]
        schema = jsonschema_rs.Draft202012Validator(entry["data_schema"], validate_formats=True)
        schema.validate(entry["example"])
        # A schema that fits everything would say nothing.
        assert not schema.is_valid({})
        assert set(entry["example"]) == set(entry["data_schema"]["properties"])


def test_what_is_really_sent_fits_its_schema(api: ApiOf) -> None:
    webhook = make_webhook(api())
    session = make_session(api(), title="a title", metadata={"a": [1, None]})
    full = finding_of(session["id"], detail="more", data={"amount": 1.5})
    for body in (full, finding_of(session["id"])):
        assert api().post("/v1/findings", body).status_code == 201
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "failed"})
    api().post(f"/v1/webhooks/{webhook['id']}/test")

    rows = history(api(), webhook)

    assert {row["event_type"] for row in rows} == {
        "finding.created",
        "session.completed",
        "webhook.test",
    }
    for row in rows:
        payload = payload_of(api(), row["event_id"])
        assert payload["type"] == row["event_type"]
        assert payload["id"] == row["event_id"]
        validator(row["event_type"]).validate(payload["data"])
        assert set(payload["data"]) == set(
            CATALOGUE[EventType(row["event_type"])].data_schema["properties"]
        )


def test_the_warning_of_a_failing_webhook_fits_its_schema_and_shows_in_its_health(
    api: ApiOf, database: Database, tenant: FreshTenant, worker: Worker
) -> None:
    told, failing = make_webhook(api()), make_webhook(api())
    webhook_id = uuid_of(failing["id"])
    make_findings(api(), 2)
    worker.send(failing, None, (0.0, 0.0))
    since = api().get(f"/v1/webhooks/{failing['id']}").json["health"]["failing_since"]
    assert since is not None
    for told_now in (True, False):
        with database.transaction(tenant.id) as session:
            lane = lanes.load(session, tenant.id, webhook_id)
            assert lane is not None
            reason = cancelling.Reason(
                "failing", lane.receiver_since, lane.health.failing_since, warns=True
            )
            assert told_now is cancelling.follow(
                session, tenant.id, webhook_id, reason, timedelta(days=5)
            )

    row = history(api(), told)[0]

    payload = payload_of(api(), row["event_id"])
    validator("webhook.failing").validate(payload["data"])
    assert (payload["data"]["webhook_id"], payload["data"]["failing_since"]) == (
        failing["id"],
        since,
    )
    assert history(api(), failing, "event_type=webhook.failing") == []


def test_the_news_of_a_disabled_webhook_fits_its_schema(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    told, disabled = make_webhook(api()), make_webhook(api())
    webhook_id = uuid_of(disabled["id"])
    with database.transaction(tenant.id) as session:
        gone = cancelling.Reason("gone", None)
        assert cancelling.follow(session, tenant.id, webhook_id, gone, timedelta(days=5))

    (row,) = history(api(), told)

    payload = payload_of(api(), row["event_id"])
    validator("webhook.disabled").validate(payload["data"])
    assert payload["data"]["webhook_id"] == disabled["id"]
    assert api().get(f"/v1/webhooks/{disabled['id']}").json["disabled_reason"] == "gone"


# One event


def test_an_event_shows_what_was_decided_for_every_webhook(api: ApiOf, worker: Worker) -> None:
    matched = make_webhook(api(), event_types=["finding.created"])
    filtered = make_webhook(api(), event_types=["session.completed"])
    disabled = make_webhook(api())
    deleted = make_webhook(api())
    api().patch(f"/v1/webhooks/{disabled['id']}", {"status": "disabled"})
    api().delete(f"/v1/webhooks/{deleted['id']}")
    (finding,) = make_findings(api(), 1)
    late = make_webhook(api())
    (row,) = history(api(), matched)
    worker.send(matched, 200)

    event = api().get(f"/v1/events/{row['event_id']}").json

    assert event["type"] == "finding.created"
    assert event["payload"]["data"] == api().get(f"/v1/findings/{finding['id']}").json
    decided = {each["webhook_id"]: each for each in event["webhooks"]}
    assert {webhook: each["decision"] for webhook, each in decided.items()} == {
        matched["id"]: "matched",
        filtered["id"]: "filtered",
        disabled["id"]: "disabled",
    }
    (delivery,) = decided[matched["id"]]["deliveries"]
    assert (delivery["id"], delivery["status"]) == (row["id"], "succeeded")
    assert decided[filtered["id"]]["deliveries"] == []
    for webhook, decision in (
        (matched, "matched"),
        (filtered, "filtered"),
        (disabled, "disabled"),
        (deleted, "absent"),
        (late, "absent"),
    ):
        path = f"/v1/webhooks/{webhook['id']}/decisions?event_id={row['event_id']}"
        answer = api().get(path).json
        assert (answer["decision"], answer["webhook_id"]) == (decision, webhook["id"])
        assert answer["explanation"]


@pytest.mark.parametrize("query", ["", "event_id=", "event_id=evt_1", f"event_id=evt_{NOBODY}"])
def test_a_decision_about_no_event_is_refused(api: ApiOf, query: str) -> None:
    webhook = make_webhook(api())

    answer = api().get(f"/v1/webhooks/{webhook['id']}/decisions?{query}")

    assert answer.status_code == (404 if NOBODY in query else 422)


def test_a_stranger_s_event_and_one_that_never_was_answer_alike(
    api: ApiOf, other_tenant: FreshTenant
) -> None:
    stranger = api(other_tenant.root_key)
    foreign_webhook = make_webhook(stranger)
    make_findings(stranger, 1)
    foreign = history(stranger, foreign_webhook)[0]["event_id"]
    own = make_webhook(api())

    answers = [
        refused(api().get(path), 404, "not-found")
        for each in (foreign, f"evt_{NOBODY}", f"evt_{'f' * 32}")
        for path in (f"/v1/events/{each}", f"/v1/webhooks/{own['id']}/decisions?event_id={each}")
    ]

    assert all(answer == answers[0] for answer in answers)


WAITS = "It waits for its first attempt"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def why(api: Api, webhook: dict[str, Any], event_id: str | None = None) -> tuple[str, str]:
    """Return the sentence on an event, by default the newest, and the lane's state."""
    event = event_id or history(api, webhook)[0]["event_id"]
    answer = api.get(f"/v1/webhooks/{webhook['id']}/decisions?event_id={event}")
    assert answer.status_code == 200, answer.json
    assert (answer.json["lane"]["until"] is not None) is (answer.json["lane"]["state"] == "paused")
    return re.sub(TIME, "THEN", answer.json["summary"]), answer.json["lane"]["state"]


def test_what_waits_is_told_how_many_are_before_it(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    for _ in range(3):
        make_findings(api(), 1)
    newest, *_, oldest = history(api(), webhook)

    assert why(api(), webhook, oldest["event_id"]) == (
        "It waits for its first attempt, and is the next of this webhook to be sent.",
        "idle",
    )
    assert why(api(), webhook, newest["event_id"])[0] == (
        "It waits for its first attempt, with 2 others of this webhook before it."
    )
    worker.claim(webhook, limit=1)
    assert why(api(), webhook, oldest["event_id"])[0] == "Attempt 1 is under way."


def test_what_ended_is_told_how(api: ApiOf, webhook: dict[str, Any], worker: Worker) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 200)
    assert why(api(), webhook)[0] == "It arrived by one attempt, recorded at THEN."
    make_findings(api(), 1)
    worker.send(webhook, 400)
    assert why(api(), webhook)[0] == (
        "It failed for good after one attempt, at THEN (HTTP 400); a replay sends it again."
    )
    make_findings(api(), 1)
    worker.send(webhook, None, TWO_TRIES)
    assert why(api(), webhook)[0] == "It has failed once (timeout); attempt 2 is due at THEN."


@pytest.mark.parametrize(
    ("change", "state", "sentence"),
    [
        (
            "UPDATE lanes SET paused_until = clock_timestamp() + interval '1 h'",
            "paused",
            "It waits for its first attempt, but the webhook is paused until a probe at THEN.",
        ),
        (
            "UPDATE lanes SET held_since = clock_timestamp()",
            "held",
            f"{WAITS}, but the webhook is held, so it is sent once that is released.",
        ),
        (
            "UPDATE lanes SET slow_at = clock_timestamp()",
            "slow",
            "It waits for its first attempt, and is the next of this webhook to be sent.",
        ),
    ],
)
def test_a_lane_that_does_not_send_is_the_reason(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    change: str,
    state: str,
    sentence: str,
) -> None:
    make_findings(api(), 1)
    worker.run(change)

    assert why(api(), webhook) == (sentence, state)


def test_what_was_cancelled_or_never_sent_is_told_why(api: ApiOf, webhook: dict[str, Any]) -> None:
    make_findings(api(), 1)
    api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})
    assert why(api(), webhook) == ("It was cancelled at THEN; a replay sends it again.", "disabled")
    other = make_webhook(api())
    make_findings(api(), 1)
    unsent = history(api(), other)[0]["event_id"]
    assert why(api(), webhook, unsent)[0].startswith("The webhook was disabled;")
    api().delete(f"/v1/webhooks/{webhook['id']}")
    assert why(api(), webhook)[1] == "deleted"
