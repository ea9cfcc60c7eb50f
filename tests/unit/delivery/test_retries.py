"""What follows from an attempt: whose fault, how long to wait, when to give up; fingerprints."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.delivery import retries
from app.core.delivery.retries import LONGEST_RETRY_AFTER, Blame, Verdict, judge, parse_retry_after

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SCHEDULE = (0.0, 5.0, 300.0)


def verdict(status: int | None, retry_after: str | None = None, attempt: int = 1) -> Verdict:
    return judge(status, retry_after, attempt=attempt, schedule=SCHEDULE, now=NOW)


@pytest.mark.parametrize(
    ("status", "blame"),
    [
        (None, Blame.ENDPOINT),
        (429, Blame.ENDPOINT),
        (500, Blame.ENDPOINT),
        (503, Blame.ENDPOINT),
        (302, Blame.DELIVERY),
        (400, Blame.DELIVERY),
        (404, Blame.DELIVERY),
    ],
)
def test_connections_429_and_5xx_are_the_endpoints_fault(status: int | None, blame: Blame) -> None:
    assert verdict(status).blame is blame


def test_a_lost_worker_is_never_held_against_the_receiver() -> None:
    judged = judge(None, None, attempt=1, schedule=SCHEDULE, now=NOW, ours=True)
    assert judged.blame is Blame.US


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 5.0), (2, 300.0)])
def test_the_wait_follows_the_schedule_within_a_fifth(attempt: int, seconds: float) -> None:
    waits = {verdict(500, attempt=attempt).wait for _ in range(200)}
    assert all(wait is not None for wait in waits)
    in_seconds = [wait.total_seconds() for wait in waits if wait]
    assert seconds * 0.8 <= min(in_seconds) < max(in_seconds) <= seconds * 1.2
    assert len(waits) > 100


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_is_obeyed_when_it_is_longer(status: int) -> None:
    judged = verdict(status, "120")
    assert judged.row_wait == timedelta(seconds=120) == judged.lane_wait


def test_retry_after_does_not_shorten_the_schedule() -> None:
    waiting = verdict(503, "1", attempt=2).row_wait
    assert waiting is not None
    assert waiting >= timedelta(seconds=240)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", timedelta(0)),
        (" 7 ", timedelta(seconds=7)),
        ("Sat, 21 Nov 2026 12:01:00 GMT", timedelta(minutes=1)),
        ("Sat, 21 Nov 2026 11:00:00 GMT", timedelta(0)),
        ("99999999999999999999", LONGEST_RETRY_AFTER),
        ("Sat, 21 Nov 2099 12:01:00 GMT", LONGEST_RETRY_AFTER),
        (str(int(NOW.timestamp()) + 90), timedelta(seconds=90)),
        (str(int(NOW.timestamp()) - 90), timedelta(0)),
        ("9999999999", LONGEST_RETRY_AFTER),
        ("999999999", LONGEST_RETRY_AFTER),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("٣", None),
        # A date that no calendar holds.
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999", None),
        ("Mon, 99999999999999999999999 Jan 2024 01:01:01 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, expected: timedelta | None) -> None:
    assert parse_retry_after(value, NOW) == expected


PARTS_OF_A_DATE = ["Mon,", "01", "Jan", "2024", "00:00:00", "GMT", "+99999999999999999", "9" * 30]
DATES = st.lists(st.sampled_from([*PARTS_OF_A_DATE, ":", ",", "-1"]), max_size=7).map(" ".join)


@given(DATES | st.text(max_size=64))
def test_no_retry_after_header_breaks_the_reader(value: str) -> None:
    wait = parse_retry_after(value, NOW)
    assert wait is None or timedelta(0) <= wait <= LONGEST_RETRY_AFTER


@pytest.mark.parametrize(
    ("attempt", "age", "over"), [(1, 0, False), (1, 365, False), (2, 367, True), (3, 0, True)]
)
def test_a_schedule_is_over_by_its_attempts_or_by_the_time_they_may_take(
    attempt: int, age: float, over: bool
) -> None:
    # 305 seconds, each wait a fifth longer at most.
    judged = judge(
        500, None, attempt=attempt, schedule=SCHEDULE, now=NOW, age=timedelta(seconds=age)
    )
    assert judged.schedule_over is over


@pytest.mark.parametrize(
    ("error", "normal"),
    [
        (None, None),
        ("", ""),
        (
            "the time was up after 15 s, while resolving",
            "the time was up after <n> s, while resolving",
        ),
        ("refused: 10.0.0.7 is not public", "refused: <address> is not public"),
        ("refused: fd00::17 is not public", "refused: <address> is not public"),
        ("refused: [::1] is not public", "refused: [<address>] is not public"),
        ("request 3fa85f6457174562b3fc2c963f66afa6", "request <id>"),
        ("request 3FA85F64-5717-4562-B3FC-2C963F66AFA6", "request <id>"),
        (f"evt_{'0' * 32} was refused", "<id> was refused"),
        ("see https://a.example/x?y=1 for more", "see <url> for more"),
        ("two\n  lines", "two lines"),
        ("at 12:30:59 it was defaced", "at <n>:<n>:<n> it was defaced"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_what_differs_between_attempts_is_taken_out(error: str | None, normal: str | None) -> None:
    assert retries.normalise(error) == normal


def test_a_fingerprint_is_that_of_outcome_status_and_normal_error() -> None:
    same = [
        retries.fingerprint("connect", None, f"could not connect to 10.0.0.{n}") for n in (1, 2)
    ]
    others = [
        retries.fingerprint("timeout", None, "could not connect to 10.0.0.1"),
        retries.fingerprint("connect", 500, "could not connect to 10.0.0.1"),
        retries.fingerprint("connect", None, "could not bind to 10.0.0.1"),
        retries.fingerprint("connect", None, None),
    ]
    assert len({*same, *others}) == 5
    assert all(-(2**63) <= each < 2**63 and each for each in (*same, *others))


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is stored: a changed one would tear each group in two."""
    assert retries.fingerprint("refused", 503, None) == 567784796792393014
