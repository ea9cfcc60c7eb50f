"""The line of an attempt has every decision and no secret; counts agree with what was sent."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from app import clock, ids, metrics
from app.core.delivery.outcomes import Outcome
from app.core.delivery.retries import Blame, Verdict
from tests.jobs.delivery.telemetry.observed import SECRET, Observed
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import OK, Receiver, Request, http_answer

DECISIONS = {
    *("tenant_id", "webhook_id", "delivery_id", "event_id", "kind", "sequence", "attempt"),
    *("claim_no", "claims_lost", "slot", "allowed", "slow", "paused", "probe"),
    *("outcome", "status_code", "blame", "status", "next_attempt_at", "retry_in", "retry_after"),
    *("started_at", "dns_ms", "connect_ms", "tls_ms", "first_byte_ms", "total_ms"),
    *("reconnected", "error"),
}


REFUSED = {
    "kind": "event",
    "sequence": 1,
    "attempt": 1,
    "claim_no": 1,
    "claims_lost": 0,
    "slot": 0,
    "allowed": 1,
    "slow": False,
    "paused": False,
    "probe": False,
    "outcome": "refused",
    "status_code": 503,
    "blame": "endpoint",
    "status": "retrying",
    "retry_in": 5.0,
    "retry_after": 5.0,
    "reconnected": False,
    "error": None,
}


def test_the_line_of_an_attempt_has_every_decision_and_nothing_secret(world: Observed) -> None:
    answers = iter([http_answer(503, SECRET.encode(), {"Retry-After": "5", "X-Word": SECRET}), OK])
    with Receiver(lambda _: next(answers)) as receiver:
        webhook = world.webhook(f"{receiver.url()}?token={SECRET}")
        (event,) = world.emit(data={"word": SECRET})
        world.turn(webhook)
        world.run("UPDATE lanes SET paused_until = NULL")
        world.run("UPDATE open_deliveries SET next_attempt_at = clock_timestamp()")
        world.turn(webhook)
    first, second = world.lines()
    assert first.keys() - {"log_level", "event"} == DECISIONS
    expected = REFUSED | {
        "tenant_id": ids.text("ten", world.tenant_id),
        "webhook_id": ids.text("whk", webhook),
        "event_id": ids.text("evt", event),
    }
    assert first | expected == first
    assert first["delivery_id"].startswith("dlv_")
    began, again = (datetime.fromisoformat(first[key]) for key in ("started_at", "next_attempt_at"))
    assert 5 <= (again - began).total_seconds() < 10
    assert first["first_byte_ms"] <= first["total_ms"]
    assert second | {"attempt": 2, "claim_no": 2, "status": "succeeded"} == second
    assert second["next_attempt_at"] is second["retry_in"] is second["retry_after"] is None
    assert SECRET not in str(world.lines())


def test_an_outcome_that_comes_too_late_is_told_and_counted(world: Observed) -> None:
    def take_over(_: Request) -> bytes:
        world.run("UPDATE open_deliveries SET claim_no = claim_no + 1")
        return OK

    with Receiver(take_over) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
    (fenced,) = world.lines("outcome_fenced")
    (sent,) = world.lines()
    shared = ("tenant_id", "webhook_id", "delivery_id", "attempt", "claim_no", "outcome")
    assert {name: fenced[name] for name in shared} == {name: sent[name] for name in shared}
    assert world.count(metrics.FENCED) == 1
    assert world.count(metrics.DELIVERIES, "event", "succeeded") == 0


def test_a_probe_says_so(open_world: Callable[..., Observed]) -> None:
    world = open_world(first_pause=timedelta(milliseconds=1))
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(6)
        world.turn(webhook)
        world.run(
            "UPDATE lanes SET paused_until = clock_timestamp() WHERE paused_until IS NOT NULL"
        )
        world.turn(webhook)
    assert [line["probe"] for line in world.lines()] == [False] * 5 + [True]
    assert world.count(metrics.PAUSES) == 2


PHASES = ("dns", "connect", "tls", "first_byte")


def test_what_is_counted_agrees_with_what_was_done(world: Observed) -> None:
    answers = iter([OK, http_answer(404), http_answer(404), OK])
    with Receiver(lambda _: next(answers)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(2)
        world.turn(webhook)
        world.turn(webhook)
        world.emit()
        world.run("UPDATE open_deliveries SET attempts = 2 WHERE status = 'retrying'")
        world.turn(webhook)
    assert len(receiver.requests) == 4
    assert world.count(metrics.CLAIMS) == 4
    assert world.count(metrics.ATTEMPTS, "event", "succeeded", "2xx") == 2
    assert world.count(metrics.ATTEMPTS, "event", "refused", "4xx") == 2
    assert world.observed(metrics.ATTEMPT_SECONDS, "refused") == 2
    assert world.observed(metrics.DELAY_SECONDS, "event") == 3
    phases = {each: world.observed(metrics.PHASE_SECONDS, each) for each in PHASES}
    assert phases["first_byte"] == 4
    assert 1 <= phases["connect"] <= 4
    assert phases["tls"] == 0
    assert world.count(metrics.DELIVERIES, "event", "succeeded") == 2
    assert world.count(metrics.TURNS, "sent") == 3
    assert world.count(metrics.CLAIMS_LOST) == world.count(metrics.FENCED) == 0
    world.turn(webhook)
    assert world.count(metrics.TURNS, "nothing_due") == 1


def test_a_post_after_a_lost_claim_is_counted_as_a_possible_duplicate(world: Observed) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(2)
        world.run(
            "UPDATE open_deliveries SET status = 'sending', claim_no = 1,"
            " lease_until = clock_timestamp()"
        )
        world.turn(webhook)
        world.emit()
        world.turn(webhook)
    assert world.count(metrics.CLAIMS) == 3
    assert world.count(metrics.CLAIMS_LOST) == 2
    assert world.count(metrics.DUPLICATES, "lost_claim") == 2
    assert [line["claims_lost"] for line in world.lines()] == [1, 1, 0]


def test_what_took_five_workers_is_no_post_and_no_duplicate(world: Observed) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        # Or a turn claims one by one, and again what its own first outcome made due at once.
        world.has_answered(webhook)
        world.emit()
        world.run(
            "UPDATE open_deliveries SET status = 'sending', claims_lost = 4,"
            " lease_until = clock_timestamp()"
        )
        world.turn(webhook)
        assert receiver.requests == []
    (line,) = world.lines()
    assert (line["outcome"], line["blame"], line["status_code"]) == ("worker_lost", "us", None)
    assert world.count(metrics.ATTEMPTS, "event", "worker_lost", "none") == 1
    assert world.count(metrics.DUPLICATES, "lost_claim") == 0
    assert world.observed(metrics.ATTEMPT_SECONDS, "worker_lost") == 0


def test_rows_that_were_not_reached_are_counted_with_the_reason(world: Observed) -> None:
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.has_answered(webhook)
        world.emit(9)
        world.turn(webhook)
    assert len(receiver.requests) == 5
    assert world.count(metrics.CLAIMS) == 9
    assert world.count(metrics.HANDED_BACK, "lane_failed") == 4
    (line,) = world.lines("leases_released")
    assert (line["count"], line["reason"]) == (4, "lane_failed")
    assert world.count(metrics.PAUSES) == 1


def test_a_ring_that_found_no_room_or_no_slot_is_counted(world: Observed) -> None:
    inside, release = threading.Event(), threading.Event()

    def hold(_: Request) -> bytes:
        inside.set()
        release.wait(LONG_ENOUGH)
        return OK

    with Receiver(hold) as receiver:
        webhook = world.webhook(receiver.url(), max_in_flight=1)
        world.emit()
        first = threading.Thread(target=world.turn, args=(webhook,))
        first.start()
        inside.wait(LONG_ENOUGH)
        world.turn(webhook)
        permits = world.fill_bulkhead()
        world.turn(webhook)
        release.set()
        first.join()
        for permit in permits:
            world.runtime.bulkhead.release(permit)
    assert world.count(metrics.TURNS, "no_slot") == 1
    assert world.count(metrics.TURNS, "no_room") == 1


def test_an_outcome_that_no_row_can_hold_is_counted_and_ends_no_writer(world: Observed) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        monstrous = Outcome(
            tenant_id=world.tenant_id,
            webhook_id=webhook,
            delivery_id=ids.new(),
            receiver_since=None,
            kind="event",
            claim_no=1,
            number=100_000,
            probe=False,
            verdict=Verdict("succeeded", Blame.NOBODY),
            outcome="succeeded",
            started_at=clock.now(),
            ended_at=clock.now(),
        )
        assert world.runtime.flusher.wait(world.runtime.flusher.put(monstrous), 10)
        world.emit()
        world.turn(webhook)
    assert world.count(metrics.REFUSED) == 1
    assert world.count(metrics.DELIVERIES, "event", "succeeded") == 1
