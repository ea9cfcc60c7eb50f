"""A webhook at which nothing arrives: warned of at half of the time, disabled at its end."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from app import ids
from app.core.delivery import cancelling
from app.core.delivery.cancelling import Reason
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World

REFUSED, BROKEN = http_answer(404), http_answer(500)
ONE_TRY, MANY_TRIES = (0.0,), (0.0, *[24 * 3600.0] * 400)


class Endpoint:
    """A webhook, the receiver that its test has answer, and another that hears the news."""

    def __init__(self, world: World, receiver: Receiver, other: Receiver) -> None:
        self.answer = BROKEN
        self.id = world.webhook(receiver.url(), event_types=["finding.created"])
        self._world = world
        self._other = other
        self._other_id = world.webhook(
            other.url(), event_types=["webhook.failing", "webhook.disabled"]
        )

    def attempts(self, count: int) -> None:
        """Make so many attempts, each of a delivery of its own, whatever pauses there are."""
        for _ in range(count):
            self._change("lanes", "paused_until = NULL, pause_level = 0")
            self._world.emit()
            self._world.turn(self.id)

    def days_pass(self, days: float) -> None:
        """Move what the lane and its deliveries remember so many days into the past."""
        ago = f"- interval '{days} days'"
        self._change(
            "lanes",
            f"failing_since = failing_since {ago}, unsuccessful_since = unsuccessful_since {ago}, "
            f"last_success_at = last_success_at {ago}, last_failures = "
            f"ARRAY(SELECT at {ago} FROM unnest(last_failures) AS each (at) ORDER BY at)",
        )
        self._change("open_deliveries", f"created_at = created_at {ago}")

    def retry(self) -> None:
        """Make one more attempt at the oldest delivery that waits for one."""
        self._change("lanes", "paused_until = NULL, pause_level = 0")
        self._change("open_deliveries", "next_attempt_at = created_at")
        self._change("lanes", "open_from = DEFAULT")
        self._world.turn(self.id)

    def news(self) -> list[dict[str, Any]]:
        """Deliver what the other receiver is to hear; return all that it has heard."""
        self._world.turn(self._other_id)
        return [json.loads(request.body) for request in self._other.requests]

    def status(self) -> tuple[str, str | None]:
        """Return whether the webhook is enabled, and why not."""
        (row,) = self._world.rows("SELECT * FROM webhooks WHERE id = :w", w=self.id)
        return row["status"], row["disabled_reason"]

    def _change(self, table: str, what: str) -> None:
        self._world.run(f"UPDATE {table} SET {what} WHERE webhook_id = :w", w=self.id)


@pytest.fixture
def endpoint_with(
    open_world: Callable[..., World], never_stalled: None
) -> Iterator[Callable[..., Endpoint]]:
    """Make the endpoint of a world with this schedule."""
    made: list[Endpoint] = []

    def answer(_: Request) -> bytes:
        return made[0].answer

    with Receiver(answer) as receiver, Receiver() as other:

        def make(schedule: tuple[float, ...]) -> Endpoint:
            made.append(Endpoint(open_world(retry_schedule=schedule), receiver, other))
            return made[0]

        yield make


@pytest.mark.parametrize("answer", [REFUSED, BROKEN])
def test_one_failed_event_quiet_days_and_another_disable_nothing(
    endpoint_with: Callable[..., Endpoint], answer: bytes
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.answer = answer
    for _ in range(2):
        endpoint.attempts(1)
        endpoint.days_pass(5.5)
    assert endpoint.status() == ("enabled", None)
    assert endpoint.news() == []


def test_an_endpoint_that_has_only_failed_is_warned_of_once_and_then_its_webhook_is_disabled(
    endpoint_with: Callable[..., Endpoint],
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.attempts(8)
    endpoint.days_pass(2.6)
    endpoint.attempts(2)
    # Ten by now, of which only two are of the last day.
    assert endpoint.news() == []
    endpoint.attempts(2)
    (warning,) = endpoint.news()
    assert warning["type"] == "webhook.failing"
    assert warning["data"]["webhook_id"] == ids.text("whk", endpoint.id)
    assert warning["data"]["failed_attempts"] == 11
    endpoint.days_pass(2.5)
    endpoint.attempts(2)
    assert endpoint.status() == ("enabled", None)
    endpoint.attempts(1)
    assert endpoint.status() == ("disabled", "failing")
    warning, news = endpoint.news()
    assert (warning["type"], news["type"]) == ("webhook.failing", "webhook.disabled")
    assert news["data"]["reason"] == "failing"


def test_nine_failures_are_no_evidence(endpoint_with: Callable[..., Endpoint]) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.attempts(1)
    endpoint.days_pass(30)
    endpoint.attempts(8)
    assert (endpoint.status(), endpoint.news()) == (("enabled", None), [])
    endpoint.attempts(1)
    assert endpoint.status() == ("disabled", "failing")


@pytest.mark.parametrize("answer", [REFUSED, BROKEN])
def test_a_success_begins_the_time_anew(
    endpoint_with: Callable[..., Endpoint], answer: bytes
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.answer = answer
    endpoint.attempts(9)
    endpoint.days_pass(6)
    endpoint.answer = OK
    endpoint.attempts(1)
    endpoint.answer = answer
    endpoint.attempts(12)
    assert (endpoint.status(), endpoint.news()) == (("enabled", None), [])


@pytest.mark.parametrize("answer", [http_answer(code) for code in (401, 403, 404, 301, 308)])
def test_a_receiver_that_refuses_everything_is_warned_of_and_then_its_webhook_is_disabled(
    endpoint_with: Callable[..., Endpoint], answer: bytes
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.answer = OK
    endpoint.attempts(1)
    endpoint.answer = answer
    endpoint.attempts(8)
    endpoint.days_pass(2.6)
    endpoint.attempts(1)
    assert endpoint.news() == []
    endpoint.attempts(2)
    (warning,) = endpoint.news()
    status = int(answer.split()[1])
    assert warning["type"] == "webhook.failing"
    assert warning["data"]["failing_since"] == warning["data"]["refusing_since"]
    assert (warning["data"]["status_code"], warning["data"]["failed_attempts"]) == (status, 11)
    endpoint.days_pass(2.5)
    endpoint.attempts(2)
    assert endpoint.status() == ("enabled", None)
    endpoint.attempts(1)
    assert endpoint.status() == ("disabled", "refusing")
    warning, news = endpoint.news()
    assert (news["type"], news["data"]["reason"]) == ("webhook.disabled", "refusing")


def test_a_refusal_among_failures_does_not_begin_their_time_anew(
    endpoint_with: Callable[..., Endpoint],
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    endpoint.attempts(9)
    endpoint.days_pass(6)
    endpoint.answer = REFUSED
    endpoint.attempts(1)
    endpoint.answer = BROKEN
    endpoint.attempts(2)
    assert endpoint.status() == ("disabled", "refusing")


def test_a_success_between_the_verdict_and_the_disabling_keeps_the_webhook(
    world: World,
) -> None:
    with Receiver(REFUSED) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
    lane = world.lane(webhook)
    reason = Reason("refusing", lane["receiver_since"], lane["unsuccessful_since"])
    world.run("UPDATE lanes SET unsuccessful_since = NULL WHERE webhook_id = :w", w=webhook)
    with world.runtime.database.transaction(world.tenant_id) as session:
        assert not cancelling.follow(session, world.tenant_id, webhook, reason, timedelta(days=5))


def test_an_endpoint_that_fails_again_is_warned_of_again(
    endpoint_with: Callable[..., Endpoint],
) -> None:
    endpoint = endpoint_with(ONE_TRY)
    for _ in range(2):
        endpoint.answer = BROKEN
        endpoint.attempts(9)
        endpoint.days_pass(2.6)
        endpoint.attempts(4)
        endpoint.answer = OK
        endpoint.attempts(1)
    assert [each["type"] for each in endpoint.news()] == ["webhook.failing"] * 2


def test_no_delivery_is_cancelled_for_a_failure_before_some_schedule_is_over(
    endpoint_with: Callable[..., Endpoint],
) -> None:
    endpoint = endpoint_with(MANY_TRIES)
    endpoint.attempts(9)
    endpoint.days_pass(6)
    endpoint.attempts(4)
    assert endpoint.status() == ("enabled", None)
    # 400 days of attempts and their jitter are over for the deliveries there are.
    endpoint.days_pass(481)
    endpoint.attempts(3)
    assert endpoint.status() == ("enabled", None)
    endpoint.retry()
    assert endpoint.status() == ("disabled", "failing")
