"""A failed delivery whose event a replay has delivered: shown, counted, and not sent again."""

from typing import Any

import pytest
from sqlalchemy import text

from app.core.delivery import cancelling
from app.database import Database
from tests.api.deliveries.replays.bulk import disable, enable, fail, made, of, read, start
from tests.api.deliveries.replays.single import replay
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    books,
    deliveries,
    history,
    make_findings,
    make_webhook,
)


@pytest.fixture
def webhook(api: ApiOf) -> dict[str, Any]:
    return make_webhook(api())


def recovered(api: Api, webhook: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return the failed, those of them that arrived, the cancelled, and those of them."""
    kept = books(api, webhook, exact=True)
    assert kept["balanced"]
    names = ("failed", "arrived_by_replay", "cancelled", "cancelled_arrived_by_replay")
    failed, arrived, cancelled, cancelled_arrived = (kept[name] for name in names)
    return failed, arrived, cancelled, cancelled_arrived


def test_what_a_replay_delivered_is_shown_on_delivery_lists_and_event(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    left, first = history(api(), webhook)
    assert first["arrived_by_replay"] is None
    again = replay(api(), first).json
    assert again["arrived_by_replay"] is None
    shown = api().get(deliveries(webhook, f"/{first['id']}")).json
    assert shown["arrived_by_replay"] is None

    worker.send(webhook, 200)

    shown = api().get(deliveries(webhook, f"/{first['id']}")).json
    assert (shown["status"], shown["arrived_by_replay"]) == ("failed", again["id"])
    expected = {left["id"]: None, first["id"]: again["id"], again["id"]: None}
    for path in (deliveries(webhook), "/v1/deliveries?status=failed,succeeded"):
        rows = api().get(path).json["data"]
        assert {row["id"]: row["arrived_by_replay"] for row in rows} == expected
    (decided,) = api().get(f"/v1/events/{first['event_id']}").json["webhooks"]
    assert [row["arrived_by_replay"] for row in decided["deliveries"]] == [again["id"], None]


def test_the_replay_that_arrived_first_is_named_and_one_that_failed_later_is_not_alarming(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 1)
    (original,) = history(api(), webhook)
    ends = []
    for status in (400, 200, 200, 400):
        ends.append(replay(api(), original).json["id"])
        worker.send(webhook, status)

    rows = {row["id"]: row["arrived_by_replay"] for row in history(api(), webhook)}
    failed_first, arrived, arrived_again, failed_last = ends
    assert rows == {
        original["id"]: arrived,
        failed_first: arrived,
        arrived: None,
        arrived_again: None,
        failed_last: arrived,
    }
    query = f"/v1/webhooks/{webhook['id']}/decisions?event_id={original['event_id']}"
    assert "has arrived by a replay" in api().get(query).json["summary"]
    assert recovered(api(), webhook) == (1, 1, 0, 0)


def test_the_accounting_says_how_many_of_the_failed_have_arrived(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 4)
    assert recovered(api(), webhook) == (4, 0, 0, 0)
    job = start(api(), of(webhook))
    worker.finish(job)
    worker.send(webhook, 400, limit=1)
    assert recovered(api(), webhook) == (4, 0, 0, 0)

    worker.send(webhook, 200, limit=2)
    assert recovered(api(), webhook) == (4, 2, 0, 0)

    worker.send(webhook, 200)
    (failed_again,) = made(api(), job, "&status=failed")
    assert replay(api(), failed_again).status_code == 202
    worker.send(webhook, 200)
    assert recovered(api(), webhook) == (4, 4, 0, 0)
    worker.count_again(job)
    assert read(api(), job)["status"] == "succeeded"


def test_two_replays_of_one_event_that_arrive_together_count_once(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 1)
    (original,) = history(api(), webhook)
    for _ in range(2):
        replay(api(), original)

    assert worker.send(webhook, 200) == 2

    assert recovered(api(), webhook) == (1, 1, 0, 0)


def test_what_failed_after_its_replay_had_arrived_counts_as_arrived(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500, TWO_TRIES)
    (original,) = history(api(), webhook)
    again = replay(api(), original).json
    worker.send(webhook, 200)
    assert recovered(api(), webhook) == (0, 0, 0, 0)
    (_, waiting) = history(api(), webhook)
    assert (waiting["status"], waiting["arrived_by_replay"]) == ("retrying", again["id"])

    worker.make_due()
    worker.send(webhook, 500)

    assert recovered(api(), webhook) == (1, 1, 0, 0)


def test_what_was_cancelled_and_replayed_is_counted_apart(
    api: ApiOf, database: Database, tenant: FreshTenant, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 3)
    disable(api(), webhook)
    enable(api(), webhook)
    job = start(api(), of(webhook), status="cancelled")
    worker.finish(job)
    worker.send(webhook, 200, limit=2)

    assert recovered(api(), webhook) == (0, 0, 3, 2)
    rows = history(api(), webhook, "status=cancelled")
    assert len([row for row in rows if row["arrived_by_replay"]]) == 2

    # What was in flight when it was cancelled may turn out to have arrived.
    with database.transaction(tenant.id) as session:
        arrived = session.scalar(
            text(
                "SELECT id FROM deliveries WHERE kind = 'event' AND event_id IN (SELECT event_id"
                " FROM deliveries WHERE kind = 'replay' AND status = 'succeeded' LIMIT 1)"
            )
        )
        cancelling.undo(session, [(tenant.id, arrived)])
    assert books(api(), webhook)["cancelled_arrived_by_replay"] == 1


def test_a_group_tells_how_many_arrived_and_how_many_still_retry(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, None, limit=3)
    worker.send(webhook, None, TWO_TRIES)
    first = history(api(), webhook, "status=failed")[0]
    replay(api(), first)
    worker.send(webhook, 200)

    (group,) = api().get("/v1/deliveries/groups").json["data"]

    assert (group["count"], group["retrying"], group["arrived_by_replay"]) == (4, 2, 1)
    (failed,) = api().get("/v1/deliveries/groups?status=failed").json["data"]
    assert (failed["count"], failed["retrying"]) == (2, 0)
