"""How a lane's health moves: pauses, probes, stragglers and slow receivers."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.core.delivery.lanes.lane_health import (
    LONGEST_PAUSE,
    Health,
    after,
    refusing_since,
)
from app.core.delivery.retries import Attempted, Blame, Verdict

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FIRST_PAUSE = timedelta(seconds=30)
FRESH = Health(None, 0, 0, None, None, None)

OK = Verdict("succeeded", Blame.NOBODY)
DOWN = Verdict("retrying", Blame.ENDPOINT, wait=timedelta(seconds=5))
NOT_FOUND = Verdict("retrying", Blame.DELIVERY, wait=timedelta(seconds=5))
LOST = Verdict("retrying", Blame.US, wait=timedelta(seconds=5))


def follow(
    health: Health,
    *verdicts: Verdict,
    status: int | None = 500,
    probe: bool = False,
    quick: bool = True,
    number: int = 1,
    at: datetime = NOW,
) -> Health:
    for verdict in verdicts:
        attempted = Attempted(
            verdict=verdict,
            number=number,
            probe=probe,
            started_at=at,
            ended_at=at,
            status_code=status,
            total_ms=999.0 if quick else 1000.0,
        )
        health = after(health, attempted, FIRST_PAUSE)
    return health


def test_what_was_under_way_when_the_pause_began_lengthens_nothing() -> None:
    paused = follow(FRESH, *[DOWN] * 5)
    later = follow(paused, *[DOWN] * 3, at=NOW + timedelta(seconds=3))
    assert (later.paused_until, later.pause_level) == (paused.paused_until, 1)


def test_a_refusal_on_a_delivery_s_own_account_ends_what_counts_against_the_endpoint() -> None:
    known = Health(last_success_at=NOW - timedelta(days=1))
    health = follow(follow(known, *[DOWN] * 8), NOT_FOUND, status=404)
    assert (health.failing_since, health.consecutive_failures) == (None, 0)
    assert (health.paused_until, health.pause_level) == (None, 0)
    assert health.recovering_since == NOW


KNOWN = Health(last_success_at=NOW - timedelta(days=1))
MINUTES = timedelta(minutes=1)


def test_ten_different_deliveries_that_are_all_refused_are_a_receiver_that_refuses() -> None:
    nine = follow(KNOWN, *[NOT_FOUND] * 9, status=404)
    assert refusing_since(nine, NOW + timedelta(days=3)) is None
    later = NOW + MINUTES
    ten = follow(nine, NOT_FOUND, status=401, at=later)
    assert (refusing_since(ten, later), ten.refused_status) == (NOW, 401)
    assert follow(ten, OK, at=later) == Health(last_success_at=later, recovering_since=later)


def test_a_delivery_that_is_refused_at_every_attempt_is_one_delivery() -> None:
    health = follow(KNOWN, NOT_FOUND, status=404)
    for number in range(2, 50):
        health = follow(health, NOT_FOUND, status=404, number=number)
    assert refusing_since(health, NOW + timedelta(days=3)) is None


def test_refusals_among_deliveries_that_arrive_are_none_of_the_receiver() -> None:
    health = KNOWN
    for _ in range(20):
        health = follow(health, *[NOT_FOUND] * 9, OK, status=404)
        assert refusing_since(health, NOW) is None
        assert health.recovering_since is None


def test_a_probe_that_is_refused_ends_the_pause_and_what_waits_comes_forward_with_a_success() -> (
    None
):
    paused = follow(KNOWN, *[DOWN] * 10)
    health = follow(paused, NOT_FOUND, status=401, probe=True)
    assert (health.paused_until, health.recovering_since) == (None, None)
    assert follow(health, OK).recovering_since == NOW


def test_a_lost_worker_changes_nothing() -> None:
    assert follow(FRESH, *[LOST] * 9) == FRESH


def test_503_slows_the_lane_at_once_and_more_each_time() -> None:
    health, waits = FRESH, []
    for _ in range(4):
        health = follow(health, DOWN, status=503)
        assert health.paused_until is not None
        waits.append((health.paused_until - NOW).total_seconds())
    assert waits == [1, 2, 4, 8]
    assert health.pause_level == 0


def asked(wait: timedelta) -> Verdict:
    return Verdict("retrying", Blame.ENDPOINT, lane_wait=wait)


def test_a_longer_retry_after_holds_the_lane_for_half_an_hour_and_until_a_probe_succeeds() -> None:
    health = follow(FRESH, asked(timedelta(hours=5)), status=429)
    for level in (1, 2):
        assert health.paused_until == NOW + timedelta(minutes=30)
        assert health.pause_level == level
        health = follow(health, asked(timedelta(hours=5)), status=429, probe=True)
    assert follow(health, OK, probe=True).paused_until is None


def test_a_quick_success_proves_a_slow_receiver_and_a_slow_one_does_not() -> None:
    slow = Health(None, 0, 0, None, None, NOW)
    assert follow(slow, OK, quick=True).slow_at is None
    assert follow(slow, OK, quick=False).slow_at == NOW


@given(
    st.lists(
        st.tuples(
            st.sampled_from([OK, DOWN, NOT_FOUND, LOST]),
            st.sampled_from([None, 200, 404, 429, 500, 503]),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_no_history_pauses_for_over_ten_minutes_or_counts_below_zero(
    history: list[tuple[Verdict, int | None, bool]],
) -> None:
    health = FRESH
    for verdict, status, probe in history:
        health = follow(health, verdict, status=status, probe=probe)
        assert health.consecutive_failures >= 0
        assert health.paused_until is None or health.paused_until <= NOW + LONGEST_PAUSE
