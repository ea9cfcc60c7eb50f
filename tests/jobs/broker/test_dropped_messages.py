"""Messages that are unreadable, failed or too old are dropped, and hold up no others."""

import json
import logging

import pytest
import structlog

from app.errors import Unavailable
from app.queue import Bell
from tests.jobs.broker.working import TENANT, Seen, message, working
from tests.support.faults import OwnValkey, until


def test_unreadable_messages_are_dropped_and_the_rest_is_done(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen()
    rubbish = {
        "a": b"not JSON",
        "b": b"\xff\xfe",
        "c": b"[]",
        "d": b"null",
        "e": json.dumps({"queue_name": "jobs"}).encode(),
        "f": message(options=[]),
        "g": message(options={"redis_message_id": 7}),
        "h": message(actor_name="nobody", options={"redis_message_id": "h"}),
        "i": message(args=["one", "too", "many"], options={"redis_message_id": "i"}),
        "j": message(args=5, options={"redis_message_id": "j"}),
        "k": message(queue_name="elsewhere", options={"redis_message_id": "k"}),
        "l": message(args=[TENANT, "x"], kwargs=3, options={"redis_message_id": "l"}),
        "m": message(args=[TENANT, "x"], options={"redis_message_id": "m", "max_age": "old"}),
        "n": message(args=[TENANT, "x"], options={"redis_message_id": "n", "eta": 9e12}),
        "o": message(args=[TENANT, "x"], options={"redis_message_id": "o", "throws": "all"}),
        "p": message(message_id=["p"], options={"redis_message_id": "p"}),
        "q": message(actor_name=["q"], options={"redis_message_id": "q"}),
        "r": message(message_timestamp="r", options={"redis_message_id": "r", "max_age": 1}),
    }
    own_valkey.client.hset("dramatiq:jobs.msgs", mapping=rubbish)
    own_valkey.client.rpush("dramatiq:jobs", "no such message", *rubbish)
    with working(own_valkey, threads=1, run_job=seen.note):
        Bell(own_valkey.url).ring("run_job", (TENANT, "good"))
        until(lambda: (TENANT, "good") in seen.calls)
    # Dramatiq begins a consumer that an error has ended anew, after a pause.
    assert "Restarting consumer" not in caplog.text


def test_a_ring_for_an_actor_of_a_later_release_is_dropped_with_one_line(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    bell.ring("check_master_keys", ())
    with working(own_valkey, sweep=seen.note):
        bell.ring("sweep", ())
        until(lambda: seen.calls == [()])
        # Not kept for another worker, nor as a dead letter.
        until(lambda: not [key for key in own_valkey.client.scan_iter() if b"tick" in key])
    (line,) = [line for line in caplog.records if "check_master_keys" in line.getMessage()]
    assert (line.levelname, "undefined actor" in line.getMessage()) == ("ERROR", True)


def test_a_failed_message_is_not_kept_and_its_secret_not_logged(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_tenant: str, _job: str) -> None:
        try:
            raise ValueError("password=hunter2")
        except ValueError as error:
            raise RuntimeError("token=hunter2") from error

    with structlog.testing.capture_logs() as lines, working(own_valkey, run_job=fail):
        Bell(own_valkey.url).ring("run_job", (TENANT, "bad"))
        until(lambda: any(line["event"] == "message_failed" for line in lines))
        until(lambda: own_valkey.client.hlen("dramatiq:jobs.msgs") == 0)

    (line,) = [line for line in lines if line["event"] == "message_failed"]
    assert line["error"] == "RuntimeError < ValueError"
    assert any(where.endswith(" fail") for where in line["at"])
    assert "hunter2" not in caplog.text + repr(lines)
    assert not [key for key in own_valkey.client.scan_iter() if b".XQ" in key]


def test_a_database_that_is_away_is_said_and_is_no_failure_of_the_service(
    own_valkey: OwnValkey,
) -> None:
    def fail(_: str) -> None:
        raise Unavailable("hunter2")

    with structlog.testing.capture_logs() as lines, working(own_valkey, run_job=fail):
        Bell(own_valkey.url).ring("run_job", ("1",))
        until(lambda: any(line["event"] == "database_unavailable" for line in lines))
        until(lambda: own_valkey.client.hlen("dramatiq:jobs.msgs") == 0)
    assert not any(line["event"] == "message_failed" for line in lines)
    assert "hunter2" not in repr(lines)


def test_a_tick_that_was_not_taken_in_time_is_dropped(own_valkey: OwnValkey) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    bell.ring_many("sweep", [()] * 50, max_age_ms=1)
    with working(own_valkey, sweep=seen.note):
        until(lambda: own_valkey.client.hlen("dramatiq:tick.msgs") == 0)
        assert seen.calls == []
        bell.ring("sweep", (), max_age_ms=60_000)
        until(lambda: seen.calls == [()])
