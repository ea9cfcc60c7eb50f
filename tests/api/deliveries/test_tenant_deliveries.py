"""Deliveries of all webhooks of a tenant: the list, its filters, its pages."""

from typing import Any

import pytest

from app.core.delivery.history.delivery_list import MOST_READ, MOST_SUBJECTS
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    all_pages,
    finding_of,
    make_record,
    make_session,
    pointers,
)
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook

PATH = "/v1/deliveries"


@pytest.fixture
def webhooks(api: ApiOf) -> list[dict[str, Any]]:
    return [make_webhook(api()) for _ in range(2)]


def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    return api.rows(f"{PATH}?{query}")


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def test_the_list_has_the_rows_of_every_history_newest_first(
    api: ApiOf, webhooks: list[dict[str, Any]], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhooks[0], 500)
    make_findings(api(), 1)

    rows = listed(api())

    of_each = [row for webhook in webhooks for row in history(api(), webhook)]
    assert rows == sorted(of_each, key=lambda row: row["id"], reverse=True)
    assert len(rows) == 6
    assert listed(api(), f"webhook_id={webhooks[0]['id']}") == history(api(), webhooks[0])


def test_another_tenant_s_deliveries_are_not_in_it(
    api: ApiOf, webhooks: list[dict[str, Any]], other_tenant: FreshTenant
) -> None:
    make_findings(api(), 1)

    assert len(listed(api())) == len(webhooks)
    stranger = api(other_tenant.root_key)
    assert listed(stranger) == listed(stranger, f"webhook_id={webhooks[0]['id']}") == []


@pytest.mark.parametrize("query", ["", "&status=failed,pending", "&status=failed,retrying"])
def test_pages_hold_each_delivery_once_while_others_are_made(
    api: ApiOf, webhooks: list[dict[str, Any]], worker: Worker, query: str
) -> None:
    make_findings(api(), 4)
    worker.send(webhooks[0], 400)
    worker.send(webhooks[1], 500, TWO_TRIES, limit=2)
    expected = ids(listed(api(), f"limit=200{query}"))

    seen = ids(all_pages(api(), f"{PATH}?limit=3{query}", lambda: make_findings(api(), 1)))

    assert [each for each in seen if each in expected] == seen[: len(expected)] == expected


@pytest.fixture
def mixed(api: ApiOf, webhooks: list[dict[str, Any]], worker: Worker) -> list[dict[str, Any]]:
    """Make a delivery that succeeded, one that waits after a timeout, two that failed, one each
    that was cancelled and was never tried.
    """
    first, second = webhooks
    make_findings(api(), 1)
    worker.send(first, 204)
    worker.send(second, None, TWO_TRIES, error="could not connect within 5 s")
    make_findings(api(), 1)
    worker.send(first, 400)
    worker.send(second, 503)
    make_findings(api(), 1)
    worker.unpause()
    api().patch(f"/v1/webhooks/{first['id']}", {"status": "disabled"})
    return webhooks


@pytest.mark.parametrize(
    ("query", "statuses"),
    [
        ("status=succeeded", ["succeeded"]),
        ("status=failed", ["failed", "failed"]),
        ("status=retrying", ["retrying"]),
        ("status=pending", ["pending"]),
        ("status=sending", []),
        ("status=cancelled&status=failed", ["cancelled", "failed", "failed"]),
        ("status=pending,cancelled,succeeded", ["cancelled", "pending", "succeeded"]),
        ("outcome=succeeded", ["succeeded"]),
        ("outcome=timeout", ["retrying"]),
        ("outcome=timeout&status=failed", []),
        ("outcome=lost", []),
        ("status_code=204", ["succeeded"]),
        ("status_code=503", ["failed"]),
        ("status_code=503&outcome=timeout", []),
        ("event_type=finding.created&status=failed", ["failed", "failed"]),
        ("event_type=webhook.test", []),
    ],
)
def test_filters_keep_what_fits_all_of_them(
    api: ApiOf,
    mixed: list[dict[str, Any]],
    query: str,
    statuses: list[str],
) -> None:
    found = listed(api(), query)

    assert sorted(row["status"] for row in found) == statuses
    assert ids(found) == sorted(ids(found), reverse=True)
    of_each = [
        row["status"]
        for webhook in mixed
        for row in listed(api(), f"{query}&webhook_id={webhook['id']}")
    ]
    assert sorted(of_each) == statuses


def test_a_finding_s_deliveries_are_those_of_its_event(
    api: ApiOf, webhooks: list[dict[str, Any]], other_tenant: FreshTenant
) -> None:
    wanted, _ = make_findings(api(), 2)

    found = listed(api(), f"finding_id={wanted['id']}")

    assert {row["webhook_id"] for row in found} == {webhook["id"] for webhook in webhooks}
    (event,) = {row["event_id"] for row in found}
    assert api().get(f"/v1/events/{event}").json["payload"]["data"]["id"] == wanted["id"]
    assert listed(api(), f"finding_id={wanted['id']}&record_id=rec_{NOBODY}") == []
    assert listed(api(other_tenant.root_key), f"finding_id={wanted['id']}") == []
    assert listed(api(), f"finding_id=fnd_{NOBODY}") == []


def test_an_event_s_deliveries_are_those_to_all_webhooks_with_their_replays(
    api: ApiOf, webhooks: list[dict[str, Any]], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhooks[0], 400)
    row = history(api(), webhooks[0])[0]
    api().post(f"/v1/webhooks/{webhooks[0]['id']}/deliveries/{row['id']}/replay")

    found = listed(api(), f"event_id={row['event_id']}")

    assert [each["kind"] for each in found] == ["replay", "event", "event"]
    assert {each["event_id"] for each in found} == {row["event_id"]}
    (replayed,) = listed(api(), f"event_id={row['event_id']}&status=failed")
    assert replayed["id"] == row["id"]
    one = listed(api(), f"event_id={row['event_id']}&webhook_id={webhooks[1]['id']}")
    assert ids(one) == [each["id"] for each in found if each["webhook_id"] == webhooks[1]["id"]]


def test_a_session_s_deliveries_are_those_of_its_findings_and_its_completion(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    session = make_session(api())
    record = make_record(api(), session["id"])
    make_findings(api(), 1)
    batch = [finding_of(session["id"]), finding_of(session["id"], record_id=record["id"])]
    made = api().post("/v1/findings/batch", {"findings": batch}).json["data"]
    worker.send(webhook, 400)
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})

    found = listed(api(), f"session_id={session['id']}")
    about = listed(api(), f"session_id={session['id']}&record_id={record['id']}")

    of_session = {made[0]["id"], made[1]["id"], session["id"]}
    assert {subject(api(), row) for row in found} == of_session
    assert found == sorted(found, key=lambda row: row["id"], reverse=True)
    assert about == listed(api(), f"record_id={record['id']}")
    assert [subject(api(), row) for row in about] == [made[1]["id"]]
    api().post(f"/v1/webhooks/{webhook['id']}/deliveries/{about[0]['id']}/replay")
    replayed = listed(api(), f"record_id={record['id']}")
    assert [row["kind"] for row in replayed] == ["replay", "event"]
    assert listed(api(), f"record_id={record['id']}&event_id={found[0]['event_id']}") == []
    assert len(listed(api(), f"session_id={session['id']}&status=failed")) == 2


def subject(api: Api, row: dict[str, Any]) -> str:
    event = api.get(f"/v1/events/{row['event_id']}").json
    return str(event["payload"]["data"]["id"])


def test_a_session_with_too_many_findings_is_refused(
    api: ApiOf, webhooks: list[dict[str, Any]]
) -> None:
    session = make_session(api())
    findings = [finding_of(session["id"])] * (MOST_SUBJECTS + 1)
    api().post("/v1/findings/batch", {"findings": findings[1:]})
    assert len(listed(api(), f"session_id={session['id']}&limit=200")) == 200
    api().post("/v1/findings", findings[0])
    assert pointers(api().get(f"{PATH}?session_id={session['id']}")) == ["/session_id"]


def test_where_many_are_open_a_page_ends_early_and_the_next_goes_on(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 1)
    worker.claim(webhook)
    worker.run(
        "UPDATE open_deliveries SET lease_until = lease_until + '1 day' WHERE status = 'sending'"
    )
    make_findings(api(), 1)
    worker.copy("pending", MOST_READ - 1)

    assert len(listed(api(), "status=pending&limit=200")) == 200
    first = api().get(f"{PATH}?status=sending,failed").json
    assert first["data"] == []
    rest = api().get(f"{PATH}?status=sending,failed&cursor={first['next_cursor']}").json
    assert [row["status"] for row in rest["data"]] == ["sending"]
    assert rest["next_cursor"] is None
    assert ids(listed(api(), f"status=sending&webhook_id={webhook['id']}")) == ids(rest["data"])


def test_a_job_s_deliveries_are_the_replays_that_it_made(
    api: ApiOf, webhooks: list[dict[str, Any]], worker: Worker
) -> None:
    make_findings(api(), 3)
    worker.send(webhooks[0], 400)
    job = api().post(f"/v1/webhooks/{webhooks[0]['id']}/replay").json
    worker.finish(job)

    found = listed(api(), f"job_id={job['id']}")

    assert {each["job_id"] for each in found} == {job["id"]}
    assert {each["sequence"] for each in found} == {1, 2, 3}
    assert len(listed(api(), f"job_id={job['id']}&status=pending")) == 3
    assert listed(api(), f"job_id={job['id']}&status=failed") == []


def test_since_is_included_and_until_is_not(api: ApiOf, webhooks: list[dict[str, Any]]) -> None:
    for _ in range(3):
        make_findings(api(), 1)
    rows = listed(api())
    second = rows[2]["created_at"]

    assert listed(api(), f"since={second}") == [row for row in rows if row["created_at"] >= second]
    assert listed(api(), f"until={second}") == [row for row in rows if row["created_at"] < second]
    assert listed(api(), f"since={second}&until={second}") == []
    assert listed(api(), "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z") == rows
    assert listed(api(), "until=0001-01-01T00:00:00Z") == []
    assert listed(api(), "since=9999-12-31T23:59:59Z") == []


@pytest.mark.parametrize(
    "name", ["webhook_id=whk", "event_id=evt", "session_id=ses", "record_id=rec", "job_id=job"]
)
@pytest.mark.parametrize("value", [f"_{NOBODY}", f"_{'f' * 32}"])
def test_an_unknown_id_finds_nothing(
    api: ApiOf, webhooks: list[dict[str, Any]], name: str, value: str
) -> None:
    make_findings(api(), 1)

    assert listed(api(), name + value) == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("status=lost", "/status/0"),
        ("status_code=2xx", "/status_code"),
        ("status_code=99", "/status_code"),
        ("outcome=", "/outcome"),
        ("event_type=finding.deleted", "/event_type"),
        ("cursor=abc", "/cursor"),
        ("after=1", "/after"),
        ("webhook_id=a&webhook_id=b", "/webhook_id"),
    ],
)
def test_a_wrong_query_is_refused_and_named(api: ApiOf, query: str, pointer: str) -> None:
    assert pointers(api().get(f"{PATH}?{query}")) == [pointer]
