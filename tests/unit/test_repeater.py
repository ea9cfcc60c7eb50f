"""The repeater: a background thread that outlives errors and can begin again."""

import threading

import redis
from structlog.testing import capture_logs

from app.lib.repeater import Repeater

LONG = 60.0


def test_errors_are_logged_once_until_the_work_succeeds_again() -> None:
    results = iter([ValueError, ValueError, None, ValueError])

    def work() -> None:
        if (error := next(results)) is not None:
            raise error

    repeater = Repeater("test", work, LONG, failed="it_failed")
    with capture_logs() as logged:
        assert [repeater.work() for _ in range(4)] == [False, False, True, False]
    assert [(line["event"], line["error"]) for line in logged] == [("it_failed", "ValueError")] * 2


def test_an_error_of_redis_is_logged_with_its_reason() -> None:
    def work() -> None:
        raise redis.ConnectionError from ConnectionRefusedError()

    with capture_logs() as logged:
        Repeater("test", work, LONG, failed="it_failed").work()
    assert [line["reason"] for line in logged] == ["the connection was refused"]


def test_one_thread_works_however_often_it_is_begun_and_once_more_at_the_end() -> None:
    worked = threading.Semaphore(0)
    repeater = Repeater("test", worked.release, LONG, failed="it_failed", at_end=1.0)
    assert [repeater.begin() for _ in range(3)] == [True, False, False]
    assert worked.acquire(timeout=LONG)
    repeater.close(LONG)
    assert worked.acquire(timeout=0)
    assert not worked.acquire(timeout=0)


def test_work_that_failed_is_tried_again_sooner() -> None:
    worked = threading.Semaphore(0)

    def work() -> None:
        worked.release()
        raise ValueError

    repeater = Repeater("test", work, LONG, again=0.0, failed="it_failed")
    with capture_logs():
        repeater.begin()
        assert all(worked.acquire(timeout=LONG) for _ in range(3))
        repeater.close(LONG)
