"""The books of a webhook close at every moment, whatever happens to its deliveries."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog

from app.core.delivery import accounting
from tests.support.callers.api import Api, ApiOf
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    books,
    history,
    make_findings,
    make_webhook,
)

NOTHING = {"accepted": 0, "succeeded": 0, "failed": 0, "cancelled": 0, "pending": 0}


def line(figures: dict[str, Any]) -> dict[str, int]:
    return {name: figures[name] for name in NOTHING}


def test_tests_and_replays_stand_on_lines_of_their_own(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 1)
    worker.send(webhook, 500)
    (failed,) = history(api(), webhook)
    path = f"/v1/webhooks/{webhook['id']}"
    for _ in range(2):
        api().post(f"{path}/deliveries/{failed['id']}/replay")
    api().post(f"{path}/test")
    waiting = books(api(), webhook)
    assert waiting["tests"] == {**NOTHING, "accepted": 1, "pending": 1}
    assert waiting["replays"] == {**NOTHING, "accepted": 2, "pending": 2}

    worker.send(webhook, 200)

    done = books(api(), webhook)
    assert line(done) == {**NOTHING, "accepted": 1, "failed": 1}
    assert done["tests"] == {**NOTHING, "accepted": 1, "succeeded": 1}
    assert done["replays"] == {**NOTHING, "accepted": 2, "succeeded": 2}
    assert done["balanced"]


def test_events_that_the_webhook_did_not_want_are_not_accepted(api: ApiOf) -> None:
    filtered = make_webhook(api(), event_types=["session.completed"])
    disabled = make_webhook(api())
    api().patch(f"/v1/webhooks/{disabled['id']}", {"status": "disabled"})
    make_findings(api(), 3)

    assert line(books(api(), filtered)) == NOTHING
    assert line(books(api(), disabled)) == NOTHING


def test_the_totals_outlive_the_history(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 3)
    worker.send(webhook, 200)
    before = books(api(), webhook)

    worker.run("DELETE FROM ended_deliveries")

    assert books(api(), webhook) == before


def test_a_row_that_is_lost_or_counted_twice_unbalances_the_books(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 2)
    worker.claim(webhook)
    assert books(api(), webhook)["balanced"]

    worker.run("DELETE FROM open_deliveries WHERE sequence = 1")
    assert not books(api(), webhook)["balanced"]
    worker.run("UPDATE lanes SET events_failed = events_failed + 1, events_open = events_open - 1")
    assert books(api(), webhook)["balanced"]
    worker.run("UPDATE lanes SET replays_succeeded = replays_succeeded + 1")
    assert not books(api(), webhook)["balanced"]


def test_the_books_close_at_every_moment_beside_writers_and_a_worker(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    callers = [api() for _ in range(2)]

    def write(one: Api) -> None:
        for _ in range(8):
            make_findings(one, 5)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(write, one) for one in callers]
        while not all(each.done() for each in running):
            worker.send(webhook, 200, limit=3)
            assert books(api(), webhook)["balanced"]
        for each in running:
            each.result()
    while worker.send(webhook, 200):
        pass

    assert line(books(api(), webhook)) == {**NOTHING, "accepted": 80, "succeeded": 80}


@pytest.fixture
def scan_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the books take every webhook for one on which too many wait to be scanned."""
    monkeypatch.setattr(accounting, "SCANNED_AT_MOST", -1)


def both(api: Api, webhook: dict[str, Any]) -> dict[str, Any]:
    """Return the books, which must be the same whether they are scanned or not."""
    kept = books(api, webhook)
    scanned = books(api, webhook, exact=True)
    assert (kept["counted"], scanned["counted"]) == (False, True)
    assert kept | {"counted": True} == scanned
    assert kept["balanced"]
    return kept


@pytest.mark.usefixtures("scan_nothing")
def test_long_books_are_kept_without_a_scan_through_every_end_of_a_delivery(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    path = f"/v1/webhooks/{webhook['id']}"
    make_findings(api(), 6)
    assert both(api(), webhook)["pending"] == 6  # none has a number
    lane, claimed = worker.claim(webhook, 1)
    worker.record(lane, claimed, 200)
    worker.record(lane, claimed, 200)  # late, and fenced
    worker.send(webhook, 400, limit=1)
    worker.send(webhook, 500, TWO_TRIES, limit=1)
    make_findings(api(), 2)
    assert line(both(api(), webhook)) | {"accepted": 8, "pending": 6} == line(both(api(), webhook))
    (failed,) = history(api(), webhook, "status=failed")
    api().post(f"{path}/deliveries/{failed['id']}/replay")
    job = api().post(f"{path}/replay", {"status": ["failed"]}).json
    api().post(f"{path}/test")
    worker.finish(job)
    waiting = both(api(), webhook)
    assert (waiting["tests"]["pending"], waiting["replays"]["pending"]) == (1, 1)

    api().patch(path, {"status": "disabled"})

    closed = both(api(), webhook)
    assert line(closed) == {
        "accepted": 8,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 6,
        "pending": 0,
    }
    assert (closed["tests"]["cancelled"], closed["replays"]["cancelled"]) == (1, 1)


def test_a_scan_that_finds_other_rows_than_were_counted_is_seen(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 2)
    worker.claim(webhook)
    worker.run("UPDATE lanes SET events_open = events_open + 1")

    with structlog.testing.capture_logs() as lines:
        found = books(api(), webhook)

    assert not found["balanced"]
    assert line(found) == {**NOTHING, "accepted": 2, "pending": 2}
    (said,) = [each for each in lines if each["event"] == "accounting_unbalanced"]
    assert (said["log_level"], said["events_found"], said["events_open"]) == ("error", 2, 3)
