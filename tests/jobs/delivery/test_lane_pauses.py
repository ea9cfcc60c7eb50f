"""Failures pause a lane; a probe, a new URL and Retry-After steer it."""

import threading
from datetime import timedelta
from uuid import UUID

from app import clock
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World


def test_five_failures_in_a_row_pause_the_lane_and_waiting_spends_no_attempt(world: World) -> None:
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(8)
        world.turn(webhook)
        world.turn(webhook)
        assert len(receiver.requests) == 5
    lane = world.lane(webhook)
    assert lane["consecutive_failures"] == 5
    assert timedelta(seconds=16) < lane["paused_until"] - clock.now() < timedelta(seconds=31)
    assert lane["due_at"] >= lane["paused_until"]
    assert sum(row["attempts"] for row in world.deliveries(webhook)) == 5


def test_a_pause_ends_with_one_probe_and_a_failed_probe_doubles_it(world: World) -> None:
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(8)
        world.turn(webhook)
        _end_pause(world, webhook)
        world.turn(webhook)
        assert len(receiver.requests) == 6
    lane = world.lane(webhook)
    assert timedelta(seconds=35) < lane["paused_until"] - clock.now() < timedelta(seconds=61)


def test_a_probe_that_succeeds_opens_the_lane(world: World) -> None:
    answers = iter([http_answer(500)] * 5)
    with Receiver(lambda _: next(answers, OK)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(8)
        world.turn(webhook)
        _end_pause(world, webhook)
        world.turn(webhook)
        world.turn(webhook)
    assert all(row["status"] == "succeeded" for row in world.deliveries(webhook))
    assert world.lane(webhook)["paused_until"] is None


def test_retry_after_is_obeyed_by_the_row_and_slows_the_lane(world: World) -> None:
    answer = http_answer(429, headers={"Retry-After": "3600"})
    with Receiver(answer) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(3)
        world.turn(webhook)
        assert len(receiver.requests) == 1
    row = next(row for row in world.deliveries(webhook) if row["attempts"] == 1)
    assert row["next_attempt_at"] - clock.now() > timedelta(minutes=50)
    paused = world.lane(webhook)["paused_until"] - clock.now()
    assert timedelta(minutes=20) < paused < timedelta(minutes=30, seconds=1)


def _end_pause(world: World, webhook: UUID) -> None:
    world.run("UPDATE lanes SET paused_until = clock_timestamp() WHERE webhook_id = :w", w=webhook)


def test_what_the_old_url_answers_does_not_count_against_the_new(world: World) -> None:
    changed = threading.Event()

    def gone_once_changed(_: Request) -> bytes:
        world.change(webhook, url="http://127.0.0.1:9/new")
        changed.set()
        return http_answer(410)

    with Receiver(gone_once_changed) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
    assert changed.is_set()
    (hook,) = world.rows("SELECT * FROM webhooks WHERE id = :w", w=webhook)
    assert (hook["status"], hook["url"]) == ("enabled", "http://127.0.0.1:9/***")
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert world.lane(webhook)["failing_since"] is None
