"""The catch-up feed of a webhook: every event once, in order, up to what is kept."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.delivery.history import catch_up
from app.core.delivery.lanes import lanes
from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import finding_of, make_finding, make_session, refused
from tests.support.callers.sending import Worker, deliveries, history, make_findings

_LOSE = text("INSERT INTO epochs (common_until, accepted_at) VALUES (:until, now())")


def test_the_feed_gives_events_in_order_with_their_payloads(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    findings = make_findings(api(), 3)

    feed = api().get(deliveries(webhook, "?after=0"))

    rows = feed.json["data"]
    assert [row["sequence"] for row in rows] == [1, 2, 3]
    assert {row["payload"]["data"]["id"] for row in rows} == {each["id"] for each in findings}
    assert all(row["payload"]["id"] == row["event_id"] for row in rows)
    assert (feed.json["next_cursor"], feed.json["next_after"]) == (None, 3)
    assert "after=3" in feed.headers["Link"]


@pytest.mark.parametrize("events", [0, 2])
def test_behind_the_newest_the_feed_is_empty(
    api: ApiOf, webhook: dict[str, Any], events: int
) -> None:
    if events:
        make_findings(api(), events)

    feed = api().get(deliveries(webhook, f"?after={events}"))

    epoch = feed.json["epoch"]
    nothing = {"data": [], "next_cursor": None, "next_after": events, "epoch": epoch}
    assert feed.json == nothing
    assert "Link" not in feed.headers
    again = api().get(deliveries(webhook, f"?after={events}&epoch={epoch}"))
    assert again.json == nothing


@pytest.mark.parametrize("after", [3, 2**53 - 1])
def test_a_number_that_no_event_has_is_of_a_history_that_was_lost(
    api: ApiOf, webhook: dict[str, Any], after: int
) -> None:
    make_findings(api(), 2)
    told = refused(api().get(deliveries(webhook, f"?after={after}")), 410, "history-rolled-back")
    assert told["next_after"] == 0
    feed = api().get(deliveries(webhook, f"?after=0&epoch={told['epoch']}"))
    assert [row["sequence"] for row in feed.json["data"]] == [1, 2]


def test_a_reader_of_an_ended_epoch_begins_where_its_numbers_are_the_same(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, admin_engine: Engine
) -> None:
    """Of two losses in a row the earlier counts, of a strange epoch any."""
    path = deliveries(webhook)
    first = api().get(f"{path}?after=0").json["epoch"]
    make_findings(api(), 3)
    worker.send(webhook)
    with admin_engine.begin() as owner:
        before: Any = owner.execute(text("SELECT clock_timestamp()")).scalar_one()
    make_findings(api(), 2)
    worker.send(webhook)
    try:
        with admin_engine.begin() as owner:
            # A minute is left to what was on its way.
            for minutes in (1, 6):
                owner.execute(_LOSE, {"until": before + timedelta(minutes=minutes)})
        told: dict[str, Any] = {}
        for epoch, begin in ((first, 3), ("epo_" + "0" * 32, 0)):
            told = refused(api().get(f"{path}?after=5&epoch={epoch}"), 410, "history-rolled-back")
            assert told["next_after"] == begin
        feed = api().get(f"{path}?after=3&epoch={told['epoch']}").json
        assert [row["sequence"] for row in feed["data"]] == [4, 5]
        refused(api().get(f"{path}?epoch={first}"), 422, "validation-failed")
    finally:
        with admin_engine.begin() as owner:
            owner.execute(text("DELETE FROM epochs WHERE common_until IS NOT NULL"))


def test_replays_and_tests_are_not_in_the_feed(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500)
    for row in history(api(), webhook):
        api().post(deliveries(webhook, f"/{row['id']}/replay"))
    api().post(f"/v1/webhooks/{webhook['id']}/test")

    rows = history(api(), webhook, "after=0")

    assert [(row["sequence"], row["kind"]) for row in rows] == [(1, "event"), (2, "event")]


def test_more_events_than_are_numbered_at_once_are_all_found(
    api: ApiOf, webhook: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "NUMBER_AT_ONCE", 5)
    make_findings(api(), 13)

    seen: list[int] = []
    while data := history(api(), webhook, f"after={len(seen)}&limit=2"):
        seen += [row["sequence"] for row in data]

    assert seen == list(range(1, 14))


def test_a_reader_beside_writers_misses_nothing(api: ApiOf, webhook: dict[str, Any]) -> None:
    session_id = make_session(api())["id"]
    writers = [api() for _ in range(4)]

    def write(one: Api) -> None:
        for _ in range(15):
            answer = one.post("/v1/findings", finding_of(session_id))
            assert answer.status_code == 201

    seen: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(write, one) for one in writers]
        while len(seen) < 60:
            done = all(each.done() for each in running)
            data = history(api(), webhook, f"after={len(seen)}&limit=7")
            seen += [row["sequence"] for row in data]
            assert data or not done, "events are missing"
        for each in running:
            each.result()

    assert seen == list(range(1, 61))


def test_events_older_than_the_history_kept_are_gone_and_the_answer_says_where_to_go_on(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, 200)
    worker.run("DELETE FROM ended_deliveries WHERE sequence <= 2")

    for after in (0, 1):
        answer = api().get(deliveries(webhook, f"?after={after}"))
        assert refused(answer, 410, "history-pruned")["first_available"] == 3
    assert [row["sequence"] for row in history(api(), webhook, "after=2")] == [3, 4, 5]


def test_the_feed_never_steps_over_a_number_that_is_gone(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, 200)
    worker.run("DELETE FROM ended_deliveries WHERE sequence = 3")

    assert [row["sequence"] for row in history(api(), webhook, "after=0")] == [1, 2]
    answer = api().get(deliveries(webhook, "?after=2"))
    assert refused(answer, 410, "history-pruned")["first_available"] == 4


def test_a_page_of_large_events_ends_before_it_is_too_large(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    session_id = make_session(api())["id"]
    for _ in range(26):
        make_finding(api(), session_id, data="x" * 200_000)

    first = api().get(deliveries(webhook, "?after=0"))
    seen = [row["sequence"] for row in first.json["data"]]
    assert 1 < len(seen) < 26
    assert len(first.data) < catch_up.MOST_PAYLOAD + 2**20
    seen += [row["sequence"] for row in history(api(), webhook, f"after={seen[-1]}")]
    assert seen == list(range(1, 27))
