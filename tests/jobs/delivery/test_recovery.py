"""After an outage: what waits for its next attempt comes forward, a few first and then more."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from app import clock
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World

BROKEN, REFUSED = http_answer(500), http_answer(404)
LATER = http_answer(503, headers={"Retry-After": "36000"})
HOURS = 3600.0


class Outage:
    """A webhook whose receiver answers what its test says, and what became of its deliveries."""

    def __init__(self, world: World, receiver: Receiver) -> None:
        self.answer: bytes | Callable[[], bytes] = BROKEN
        self.world = world
        self.id = world.webhook(receiver.url(), max_in_flight=1)
        self._path = "/hook"
        self._url = receiver.url
        self._requests = receiver.requests

    def fail(self, count: int) -> None:
        """Have so many deliveries fail once, whatever pauses there are."""
        for _ in range(count):
            self.end_pause(level=0)
            self.world.emit()
            self.world.turn(self.id)

    def end_pause(self, level: int = 1) -> None:
        self.world.run(
            "UPDATE lanes SET paused_until = NULL, pause_level = :level WHERE webhook_id = :w",
            w=self.id,
            level=level,
        )

    def probe(self) -> None:
        """Have a new delivery be the probe that ends the pause."""
        self.end_pause()
        self.world.emit()
        self.world.turn(self.id)

    def move(self) -> None:
        """Give the webhook another URL, of the same receiver."""
        self._path += "/moved"
        self.world.change(self.id, url=self._url(self._path))

    def turn(self) -> int:
        """Let a worker send what is due; return how many attempts it made."""
        before = len(self._requests)
        self.world.turn(self.id)
        return len(self._requests) - before

    def turns(self) -> tuple[int, int]:
        """Let a worker send until nothing is due; return its first turn's attempts, and all."""
        sent = [first := self.turn()]
        while sent[-1]:
            sent.append(self.turn())
        return first, sum(sent)

    def rows(self) -> list[Any]:
        return self.world.deliveries(self.id)

    def waiting(self) -> int:
        """How many deliveries wait for an attempt that is hours away."""
        soon = clock.now() + timedelta(hours=1)
        return sum(
            row["finished_at"] is None and row["next_attempt_at"] > soon for row in self.rows()
        )

    def lane(self) -> Any:
        return self.world.lane(self.id)


@pytest.fixture
def outage(open_world: Callable[..., World], never_stalled: None) -> Iterator[Outage]:
    """A world where a second attempt comes after 14 hours, and a third is the last."""
    made: list[Outage] = []

    def answer(_: Request) -> bytes:
        answer = made[0].answer
        return answer if isinstance(answer, bytes) else answer()

    with Receiver(answer) as receiver:
        made.append(Outage(open_world(retry_schedule=(0.0, 14 * HOURS, 14 * HOURS)), receiver))
        yield made[0]


def test_once_a_probe_succeeds_what_waits_comes_forward_few_at_first_and_then_more(
    outage: Outage,
) -> None:
    outage.fail(20)
    assert outage.turn() == 0
    outage.answer = OK
    outage.probe()
    assert outage.waiting() == 19
    assert outage.turns() == (1, 20)
    assert {row["status"] for row in outage.rows()} == {"succeeded"}
    assert [row["attempts"] for row in outage.rows()] == [2] * 20 + [1]
    assert outage.lane()["due_at"] is None


def test_once_a_refusing_receiver_accepts_one_what_waits_comes_forward(outage: Outage) -> None:
    outage.answer = REFUSED
    outage.fail(20)
    assert outage.turn() == 0
    outage.answer = OK
    outage.world.emit()
    assert outage.turn() == 1
    assert outage.waiting() == 19
    assert outage.turns() == (1, 20)
    assert {row["status"] for row in outage.rows()} == {"succeeded"}


def test_what_was_refused_among_deliveries_that_arrived_waits_for_its_own_time(
    outage: Outage,
) -> None:
    for answer in (OK, REFUSED, OK):
        outage.answer = answer
        outage.world.emit()
        outage.turn()
    assert (outage.turn(), outage.waiting()) == (0, 1)


def test_a_receiver_that_fails_again_stops_it_and_uses_up_no_schedule(outage: Outage) -> None:
    outage.fail(20)
    for _ in range(4):
        outage.answer = OK
        outage.probe()
        outage.answer = BROKEN
        while outage.lane()["pause_level"] == 0:
            assert outage.turn() > 0, "nothing came forward"
        assert outage.lane()["recovering_since"] is None
        assert outage.turn() == 0
    rows = [row for row in outage.rows() if row["status"] != "succeeded"]
    assert len(rows) == 20
    assert {row["status"] for row in rows} <= {"retrying", "pending"}
    # A few failures an outage: of attempts that their schedules do not count.
    assert sum(row["attempts"] for row in rows) <= 20 + 4 * 6
    assert {row["attempts"] - row["unscheduled"] for row in rows} <= {0, 1}


def test_what_is_refused_on_its_own_account_comes_forward_once_in_a_recovery(
    outage: Outage,
) -> None:
    outage.fail(12)
    outage.answer = OK
    outage.probe()
    outage.answer = REFUSED
    assert outage.turns() == (1, 12)
    assert {row["unscheduled"] for row in outage.rows()[:12]} == {1}
    assert outage.lane()["recovering_since"] is None


def test_a_row_comes_forward_ten_times_at_most(outage: Outage) -> None:
    outage.fail(1)
    for _ in range(12):
        outage.answer = OK
        outage.probe()
        outage.answer = REFUSED
        outage.turn()
    (row, *_) = outage.rows()
    assert (row["unscheduled"], row["attempts"], row["status"]) == (10, 11, "retrying")


def test_a_retry_after_holds_its_lane_for_half_an_hour_and_its_delivery_for_as_long_as_it_says(
    outage: Outage,
) -> None:
    outage.fail(3)
    outage.answer = LATER
    outage.fail(1)
    lane = outage.lane()
    assert timedelta(minutes=29) < lane["paused_until"] - clock.now() <= timedelta(minutes=30)
    assert lane["pause_level"] == 1
    outage.answer = OK
    outage.probe()
    assert outage.turns() == (1, 3)
    assert [row["status"] for row in outage.rows()] == [
        *["succeeded"] * 3,
        "retrying",
        "succeeded",
    ]


def test_what_was_passed_over_while_it_waited_as_asked_comes_forward_once_that_is_over(
    outage: Outage,
) -> None:
    outage.fail(6)
    first = min(outage.rows(), key=lambda row: row["next_attempt_at"])["id"]
    asked = "UPDATE open_deliveries SET asked_until = clock_timestamp() + :wait WHERE id = :id"
    outage.world.run(asked, wait=timedelta(hours=1), id=first)
    outage.answer = OK
    outage.probe()
    # So one comes forward at a time.
    outage.world.has_answered(outage.id, latency_ms=900.0)
    assert outage.turn() == 1
    assert outage.waiting() == 4
    outage.world.run(asked, wait=timedelta(0), id=first)
    outage.turns()
    assert {row["status"] for row in outage.rows()} == {"succeeded"}


def test_at_another_url_everything_comes_forward_whatever_the_old_receiver_asked_for(
    outage: Outage,
) -> None:
    outage.fail(3)
    outage.answer = LATER
    outage.fail(4)
    outage.answer = OK
    outage.move()
    assert outage.turns() == (1, 7)
    assert {row["status"] for row in outage.rows()} == {"succeeded"}


def test_what_was_on_its_way_to_the_old_url_goes_to_the_new_one_and_not_when_the_old_one_says(
    outage: Outage,
) -> None:
    def move() -> bytes:
        outage.answer = OK
        outage.move()
        return LATER

    outage.answer = move
    outage.world.emit()
    outage.turn()
    (row,) = outage.rows()
    assert (row["status"], row["attempts"]) == ("retrying", 1)
    assert outage.lane()["paused_until"] is None
    assert outage.turn() == 1
    (row,) = outage.rows()
    assert row["status"] == "succeeded"


def test_a_worker_that_dies_in_the_middle_leaves_the_rest_to_the_sweep(outage: Outage) -> None:
    outage.fail(9)
    outage.answer = OK
    outage.probe()
    assert outage.turn() == 1
    # What its end leaves behind: claims under a lease, and no outcome.
    claimed = len(outage.world.claim(outage.id))
    assert claimed > 1
    assert outage.id in outage.world.swept()
    outage.turns()
    outage.world.run(
        "UPDATE open_deliveries SET lease_until = clock_timestamp() WHERE status = 'sending'"
    )
    assert outage.turn() == claimed
    assert {row["status"] for row in outage.rows()} == {"succeeded"}
