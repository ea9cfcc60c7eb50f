"""A webhook's list of deliveries: pages and filters."""

from typing import Any

import jsonschema_rs
import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.making import pointers
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    deliveries,
    history,
    make_findings,
)


def test_a_delivery_is_listed_before_anything_was_tried(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 1)

    (row,) = history(api(), webhook)

    assert row["webhook_id"] == webhook["id"]
    assert row["event_type"] == "finding.created"
    assert (row["kind"], row["status"], row["sequence"]) == ("event", "pending", None)
    assert (row["attempt_count"], row["last_attempt"], row["finished_at"]) == (0, None, None)
    assert row["next_attempt_at"] is not None


def test_a_list_shows_each_delivery_s_last_attempt(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500, (0.0, 0.0), error="first")
    worker.send(webhook, 418, (0.0, 0.0), limit=1, error="second")

    rows = sorted(history(api(), webhook), key=lambda row: row["attempt_count"])

    assert [row["status"] for row in rows] == ["retrying", "failed"]
    assert [row["attempt_count"] for row in rows] == [1, 2]
    assert [row["last_attempt"]["number"] for row in rows] == [1, 2]
    assert [row["last_attempt"]["status"] for row in rows] == [500, 418]
    assert [row["last_attempt"]["error"] for row in rows] == ["first", "second"]
    assert rows[0]["next_attempt_at"] is not None
    assert (rows[1]["next_attempt_at"], rows[1]["finished_at"] is None) == (None, False)


def test_a_lease_that_has_run_out_reads_as_waiting_and_not_as_sending(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500, (0.0, 0.0), limit=1)
    worker.claim(webhook)
    assert [row["status"] for row in history(api(), webhook)] == ["sending", "sending"]
    assert all(row["next_attempt_at"] is None for row in history(api(), webhook))

    worker.run(
        "UPDATE open_deliveries SET lease_until = clock_timestamp() - interval '1 s'"
        " WHERE status = 'sending'"
    )

    assert {row["status"] for row in history(api(), webhook)} == {"pending", "retrying"}
    assert all(row["next_attempt_at"] for row in history(api(), webhook))
    assert history(api(), webhook, "status=sending") == []
    assert len(history(api(), webhook, "status=pending")) == 1
    assert len(history(api(), webhook, "status=retrying")) == 1


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("status=lost", "/status/0"),
        ("status=", "/status/0"),
        ("status=failed,lost", "/status/1"),
        ("status=" + ",".join(["failed"] * 7), "/status"),
        ("event_type=finding.deleted", "/event_type"),
        ("since=yesterday", "/since"),
        ("limit=0", "/limit"),
        ("limit=201", "/limit"),
        ("limit=1e1", "/limit"),
        ("cursor=abc", "/cursor"),
        ("after=-1", "/after"),
        ("after=01", "/after"),
        ("after=9007199254740992", "/after"),
        ("after=" + "9" * 40, "/after"),
        ("after=", "/after"),
        ("after=0&status=failed", "/status"),
        ("after=0&since=2026-01-01T00:00:00Z", "/since"),
        ("after=0&cursor=abc", "/cursor"),
        ("order=asc", "/order"),
    ],
)
def test_a_wrong_query_is_refused_and_named(
    api: ApiOf, webhook: dict[str, Any], query: str, pointer: str
) -> None:
    assert pointers(api().get(deliveries(webhook, f"?{query}"))) == [pointer]


def test_answers_with_everything_in_them_fit_the_served_document(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, None, (0.0, 0.0), limit=1, error="The name could not be resolved.")
    worker.send(webhook, 500, TWO_TRIES, response_body=b"\xff", response_headers='[["a","b"]]')
    base = f"/v1/webhooks/{webhook['id']}"
    row = history(api(), webhook)[0]
    api().post(f"{base}/deliveries/{row['id']}/replay")
    document = api().get("/openapi.json").json

    for path, name in (
        (f"{base}/deliveries", "DeliveryPage"),
        (f"{base}/deliveries?after=0", "DeliveryPage"),
        (f"{base}/deliveries/{row['id']}", "DeliveryDetail"),
        (f"{base}/decisions?event_id={row['event_id']}", "Decision"),
        (f"/v1/events/{row['event_id']}", "Event"),
        (f"{base}/accounting", "Accounting"),
        (base, "Webhook"),
        ("/v1/webhooks", "WebhookPage"),
        ("/v1/event-types", "EventTypePage"),
    ):
        schema = {
            "$ref": f"#/components/schemas/{name}",
            "components": document["components"],
        }
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        validator.validate(api().get(path).json)
