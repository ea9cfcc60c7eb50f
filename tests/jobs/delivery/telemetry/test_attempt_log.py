"""The line of an attempt: every decision, and no secret."""

from collections.abc import Callable
from datetime import datetime, timedelta

from app import ids, metrics
from tests.jobs.delivery.telemetry.observed import SECRET, Observed
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
