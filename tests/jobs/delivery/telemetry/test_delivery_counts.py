"""The counts of deliveries agree with what was sent."""

import threading

from app import clock, ids, metrics
from app.core.delivery.outcomes import Outcome
from app.core.delivery.retries import Blame, Verdict
from tests.jobs.delivery.telemetry.observed import Observed
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import OK, Receiver, Request, http_answer

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
